"""Data sets: read as published, told from what is not them, fetched from their homes; and one sentence where that fails."""

from __future__ import annotations

import gzip
import io
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import small_data as small
from PIL import Image

from milodo.errors import InvalidInput
from milodo.problems.datasets import (
    adult,
    breast_cancer,
    bsds500,
    census,
    cifar10,
    data_folder,
    digits,
    idx,
    mnist,
    store,
    watching,
)  # fmt: skip
from milodo.problems.datasets.bsds import patch, photographs

IMAGES = "MNIST/raw/train-images-idx3-ubyte"
LABELS = "MNIST/raw/train-labels-idx1-ubyte"
BATCHES = "cifar-10-batches-bin"


@pytest.fixture
def own_data(tmp_path, monkeypatch) -> Path:
    """As small_data, but to be changed. No home can be reached."""
    folder = tmp_path / "data"
    small.write(folder)
    small.publish(folder, monkeypatch)
    monkeypatch.setenv("MILODO_DATA", str(folder))
    for name in store.HOMES:
        monkeypatch.setitem(store.HOMES, name, f"file://{tmp_path}/nowhere/")
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def home(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder that a server on this machine gives out, as the home of every data set; the data folder is empty."""
    folder = tmp_path / "home"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    homes = {"mnist": address, "adult": address, "cifar10": address + "cifar.tar.gz", "bsds500": address + "bsds.tgz"}
    for name, place in homes.items():
        monkeypatch.setitem(store.HOMES, name, place)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("MILODO_DATA", str(tmp_path / "fetched"))
    yield folder
    server.shutdown()
    server.server_close()


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> None:
    with tarfile.open(path, "w:gz") as out:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            out.addfile(entry)


# What is read


@pytest.mark.parametrize("part", ["train", "test"])
def test_mnist_is_what_was_written(small_data, part):
    images, labels = mnist(part)
    expected, classes = small.digits_of(part)
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    assert np.array_equal(images, expected) and np.array_equal(labels, classes)


@pytest.mark.parametrize("part", ["train", "test"])
def test_mnist_may_be_unpacked_and_may_lie_directly_in_its_folder(own_data, part):
    packed = mnist(part)
    for k, path in enumerate(sorted((own_data / "mnist" / "MNIST" / "raw").iterdir())):
        path.rename(own_data / "mnist" / path.name)
        if k % 2:
            path = own_data / "mnist" / path.name
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    idx._mnist.cache_clear()
    assert all(map(np.array_equal, packed, mnist(part)))


def test_cifar_takes_the_batches_that_are_there_in_their_order(small_data):
    images, labels = cifar10("train")
    first, second = small.pictures_of("data_batch_1"), small.pictures_of("data_batch_2")
    assert np.array_equal(images, np.concatenate([first[0], second[0]])) and images.shape == (8, 3, 32, 32)
    assert np.array_equal(labels, np.concatenate([first[1], second[1]]))
    assert np.array_equal(cifar10("test")[0], small.pictures_of("test_batch")[0])


def test_photographs_come_in_grey_in_the_order_of_their_names(small_data):
    images = bsds500("train")
    assert len(images) == 3 and all(image.shape == (20, 30) and image.dtype == np.float64 for image in images)
    for k, image in enumerate(images):
        colours = np.asarray(Image.open(small_data / f"bsds500/images/train/{k}.jpg"), float)
        # Rounded to one of 256 steps, and the weights themselves to multiples of 2^-16.
        assert np.abs(255 * image - colours @ [0.299, 0.587, 0.114]).max() < 0.51


def test_a_patch_is_a_square_of_a_photograph_without_its_mean(small_data):
    paths = photographs("test")
    cut = patch(paths, 4, np.random.default_rng(0)).reshape(4, 4)
    windows = [np.lib.stride_tricks.sliding_window_view(255 * image, (4, 4)).reshape(-1, 4, 4) for image in bsds500("test")]
    windows = np.concatenate(windows)
    distances = np.abs(windows - windows.mean((1, 2), keepdims=True) - cut).max((1, 2))
    assert distances.min() < 1e-10 and abs(cut.mean()) < 1e-10


def test_census_drops_gaps_numbers_categories_and_scales_by_the_training_part(small_data):
    kept = {part: [row for row in small.people_of(part) if "?" not in row] for part in ("train", "test")}
    (X, y), (X_test, y_test) = census("train"), census("test")
    assert X.shape == (len(kept["train"]), 14) and X_test.shape == (len(kept["test"]), 14)
    assert np.array_equal(y, [float(row[-1] == ">50K") for row in kept["train"]])
    assert np.array_equal(y_test, [float(row[-1] == ">50K") for row in kept["test"]])
    for column in range(14):
        values = {part: [row[column] for row in rows] for part, rows in kept.items()}
        if column not in adult.NUMBERS:
            order = sorted(set(values["train"]))
            values = {part: [order.index(value) for value in words] for part, words in values.items()}
        train, test = (np.array(values[part], float) for part in ("train", "test"))
        unit = train.std() or 1.0
        np.testing.assert_allclose(X[:, column], (train - train.mean()) / unit, atol=1e-12)
        np.testing.assert_allclose(X_test[:, column], (test - train.mean()) / unit, atol=1e-12)


def test_bundled_digits_are_split_once_into_parts_that_do_not_overlap():
    from sklearn.datasets import load_digits

    everything, classes = load_digits(return_X_y=True)
    (train, y_train), (test, y_test) = digits("train"), digits("test")
    assert len(train) + len(test) == len(everything) == 1797
    rows = np.concatenate([np.c_[16 * train, y_train], np.c_[16 * test, y_test]])
    assert np.array_equal(rows[np.lexsort(rows.T)], (every := np.c_[everything, classes])[np.lexsort(every.T)])
    assert train.min() == 0 and train.max() == 1 and set(y_test) == set(range(10))


def test_bundled_breast_cancer_is_standardised():
    X, y = breast_cancer()
    assert X.shape == (569, 30) and set(y) == {0.0, 1.0}
    assert np.abs(X.mean(0)).max() < 1e-12 and np.abs(X.std(0) - 1).max() < 1e-12


def test_what_all_callers_share_cannot_be_changed_by_one(small_data):
    for load in (lambda: mnist("test"), lambda: cifar10("test"), lambda: census("test"), lambda: digits("test"), breast_cancer):
        assert all(array is again for array, again in zip(load(), load(), strict=True))
        for array in load():
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize("load", [mnist, cifar10, bsds500, census, digits])
def test_a_part_nobody_knows_is_refused_with_the_nearest(small_data, load):
    with pytest.raises(InvalidInput, match=r"unknown part of .* 'tests'. Did you mean 'test'"):
        load("tests")


def test_the_data_folder_is_the_one_that_is_named_or_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    monkeypatch.delenv("MILODO_DATA", raising=False)
    assert data_folder() == tmp_path / "data"
    monkeypatch.setenv("MILODO_DATA", str(tmp_path / "elsewhere"))
    assert data_folder() == tmp_path / "elsewhere"


# What is refused


def refused(load, *words: str) -> None:
    """One paragraph, without a line break, that says all of this."""
    with pytest.raises(InvalidInput) as caught:
        load()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


@pytest.mark.parametrize(
    ("name", "load"),
    [
        (f"mnist/{IMAGES}.gz", lambda: mnist("train")),
        (f"cifar10/{BATCHES}/data_batch_2.bin", lambda: cifar10("train")),
        (f"cifar10/{BATCHES}/test_batch.bin", lambda: cifar10("test")),
        ("adult/adult.data", lambda: census("test")),
    ],
)
@pytest.mark.parametrize("changed", [lambda content: content[:-1], lambda content: content[:-1] + bytes([content[-1] ^ 1])])
def test_a_file_that_was_cut_short_or_changed_is_told_by_size_or_checksum(own_data, name, load, changed):
    path = own_data / name
    path.write_bytes(changed(path.read_bytes()))
    refused(load, str(path), "is not the file its publisher gives out", "expected", "Delete it")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG" + bytes(20), "begins with 89 50 4e 47, not with 00 00 08 03"),
        (small.idx_bytes(np.zeros((7, 28, 28), np.uint8))[:-1], "has 5,503 bytes where its head promises 5,504"),
        (small.idx_bytes(np.zeros((7, 28, 28), np.uint8))[:9], "it was cut short"),
        (small.idx_bytes(np.zeros((7, 28, 28), np.uint8)) + b"x", "has 5,505 bytes where its head promises 5,504"),
        (small.idx_bytes(np.zeros(7, np.uint8)), "no idx file of bytes with 3 axes"),
        (small.idx_bytes(np.zeros((7, 28, 27), np.uint8)), "one label for each image of 28 x 28"),
        (small.idx_bytes(np.zeros((6, 28, 28), np.uint8)), "7 labels"),
    ],
)
def test_an_unpacked_idx_file_that_is_none_is_refused(own_data, content, words):
    (own_data / "mnist" / f"{IMAGES}.gz").unlink()
    (own_data / "mnist" / IMAGES).write_bytes(content)
    refused(lambda: mnist("train"), words)


def test_labels_that_are_no_digits_are_refused(own_data):
    (own_data / "mnist" / f"{LABELS}.gz").unlink()
    (own_data / "mnist" / LABELS).write_bytes(small.idx_bytes(np.full(7, 11, np.uint8)))
    refused(lambda: mnist("train"), "11", "digits are 0 to 9")


@pytest.mark.parametrize(
    ("content", "words"),
    [(bytes(3073 + 3072), "records of 3,073"), (b"", "records of 3,073"), (bytes([10]) + bytes(3072), "a label is 10")],
)
def test_a_batch_without_a_published_checksum_is_told_by_its_format(own_data, monkeypatch, content, words):
    path = own_data / "cifar10" / BATCHES / "data_batch_4.bin"
    path.write_bytes(content)
    small.publish(own_data, monkeypatch)
    refused(lambda: cifar10("train"), str(path), words)


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz", "data_batch_1"])
def test_the_python_version_of_cifar_is_refused_and_the_binary_one_named(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MILODO_DATA", str(tmp_path))
    small.put(tmp_path / "cifar10" / name, b"\x80\x02}q\x01.")
    refused(lambda: cifar10("train"), "python version", "may run code", "binary version", "cifar-10-binary.tar.gz")


def test_an_image_that_is_none_or_too_small_for_a_patch_is_refused(own_data):
    folder = own_data / "bsds500" / "images" / "train"
    small.photograph(folder / "0.jpg", size=(20, 9))
    rng = np.random.default_rng(0)
    refused(lambda: patch([folder / "0.jpg"], 10, rng), "0.jpg", "9 x 20 pixels, too few for a patch of 10 x 10")
    whole = (folder / "1.jpg").read_bytes()
    for content in (whole[: len(whole) // 2], b"no image", b""):
        (folder / "2.jpg").write_bytes(content)
        refused(lambda: bsds500("train"), "2.jpg", "no readable image")


def test_photographs_that_show_nothing_are_refused(tmp_path):
    Image.new("RGB", (20, 20), (7, 7, 7)).save(tmp_path / "sky.jpg")
    refused(lambda: patch([tmp_path / "sky.jpg"], 10, np.random.default_rng(0)), "all flat")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("39, Private", "line 1: expected 14 attributes"),
        ("", "no complete row"),
        (", ".join(["x", *small.people_of("train")[1][1:]]), "'x', which is no number"),
    ],
)
def test_rows_that_are_no_census_are_refused(own_data, monkeypatch, line, words):
    (own_data / "adult" / "adult.data").write_text(line + "\n", encoding="utf-8")
    small.publish(own_data, monkeypatch)
    refused(lambda: census("train"), words)


def test_a_category_that_the_training_part_has_not_is_refused(own_data, monkeypatch):
    path = own_data / "adult" / "adult.test"
    path.write_text(path.read_text(encoding="utf-8").replace("Private", "Circus", 5), encoding="utf-8")
    small.publish(own_data, monkeypatch)
    refused(lambda: census("test"), "'Circus'", "category of the training part")


def test_without_scikit_learn_bundled_data_say_what_to_install(monkeypatch):
    import milodo.problems.datasets.bundled as bundled

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    breast_cancer.cache_clear()
    bundled._digits.cache_clear()
    for load in (breast_cancer, lambda: digits("train")):
        refused(load, "scikit-learn, which is not installed", "milodo[data]")


# What is fetched


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (lambda: mnist("train"), (f"'{IMAGES}.gz'", "mnist", "train-images-idx3-ubyte.gz")),
        (lambda: cifar10("test"), (f"'{BATCHES}/test_batch.bin'", "cifar10", "cifar.tar.gz")),
        (lambda: bsds500("test"), ("'images/test/*.jpg'", "bsds500", "bsds.tgz")),
        (lambda: census("train"), ("'adult.data'", "adult", "adult.data")),
    ],
)
def test_a_file_that_cannot_be_had_is_named_with_its_folder_and_its_home(home, load, words):
    file, dataset, given_out = words
    refused(
        load, file, str(data_folder() / dataset), store.HOMES[dataset].rstrip("/"), given_out, "File not found", "MILODO_DATA"
    )
    assert not data_folder().exists()  # nothing was begun


def test_a_home_that_does_not_answer_is_said(home, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        monkeypatch.setitem(store.HOMES, "adult", f"http://127.0.0.1:{closed.getsockname()[1]}/")
        refused(lambda: census("train"), "could not be downloaded", "refused")


def test_files_are_fetched_once_checked_and_read(home, written, monkeypatch):
    small.publish(written, monkeypatch)
    for path in [*(written / "mnist").rglob("*.gz"), *(written / "adult").iterdir()]:
        small.put(home / path.name, path.read_bytes())
    heard: list[tuple[str, float]] = []
    with watching(lambda address, share: heard.append((address, share))):
        images, labels = mnist("train")
        assert len(census("test")[1]) == 81
    assert np.array_equal(images, small.digits_of("train")[0]) and np.array_equal(labels, small.digits_of("train")[1])
    assert len({address for address, _ in heard}) == 4 and heard[-1] == (store.HOMES["adult"] + "adult.test", 1.0)
    assert sorted(path.name for path in data_folder().rglob("*") if path.is_file()) == [
        "adult.data", "adult.test", "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
    ]  # fmt: skip
    for path in home.iterdir():
        path.unlink()
    idx._mnist.cache_clear()
    assert np.array_equal(mnist("train")[0], images)


def test_only_what_was_asked_for_leaves_an_archive_and_only_to_its_place(home, written, monkeypatch, tmp_path):
    small.publish(written, monkeypatch)
    batches = {f"data_batch_{k}.bin": small.cifar_bytes(*small.pictures_of(f"data_batch_{k}")) for k in range(1, 6)}
    batches["test_batch.bin"] = (written / f"cifar10/{BATCHES}/test_batch.bin").read_bytes()
    monkeypatch.setattr("milodo.problems.datasets.cifar.FILES", {
        "train": [store.File(f"{BATCHES}/data_batch_{k}.bin", len(batches["data_batch_1.bin"])) for k in range(1, 6)],
        "test": [store.File(f"{BATCHES}/test_batch.bin", len(batches["test_batch.bin"]))],
    })  # fmt: skip
    members = {f"../../{name}" if "5" in name else f"{BATCHES}/{name}": content for name, content in batches.items()}
    archive(
        home / "cifar.tar.gz",
        members | {"../../evil.py": b"x", f"{BATCHES}/readme.html": b"x"},
        {"test_batch.bin": "/etc/passwd"},
    )
    images, _ = cifar10("train")
    assert len(images) == 20
    (home / "cifar.tar.gz").unlink()
    assert np.array_equal(cifar10("test")[0], small.pictures_of("test_batch")[0])  # it came along
    found = {str(path.relative_to(data_folder())) for path in data_folder().rglob("*") if path.is_file()}
    assert found == {f"cifar10/{BATCHES}/{name}" for name in batches}
    assert not list(tmp_path.rglob("evil.py"))


def test_photographs_are_fetched_and_found_by_their_place_in_the_archive(home, written):
    photos = {path: path.read_bytes() for path in (written / "bsds500").rglob("*.jpg")}
    members = {f"BSR/BSDS500/data/images/{path.parent.name}/{path.name}": content for path, content in photos.items()}
    archive(home / "bsds.tgz", members | {"BSR/BSDS500/data/images/val/9.jpg": b"x", "BSR/bench/data/images/Thumbs.db": b"x"})
    assert len(bsds500("train")) == len(bsds500("test")) == 3
    assert len([path for path in data_folder().rglob("*") if path.is_file()]) == 6


def test_an_archive_without_the_file_or_that_is_none_is_refused(home):
    archive(home / "cifar.tar.gz", {"other.bin": b"x"})
    refused(lambda: cifar10("test"), "test_batch.bin", "could not be downloaded")
    (home / "cifar.tar.gz").write_bytes(b"<html>moved</html>")
    refused(lambda: cifar10("test"), "could not be downloaded")
    archive(home / "bsds.tgz", {"other.jpg": b"x"})
    refused(lambda: bsds500("test"), "holds no such images")


@pytest.mark.parametrize("content", [b"", b"something else", bytes(100)])
def test_what_arrives_but_is_not_the_file_leaves_nothing_behind(home, content):
    (home / "adult.data").write_bytes(content)
    refused(lambda: census("train"), "is not that file")
    assert not [path for path in data_folder().rglob("*") if path.is_file()]


def test_an_answer_that_breaks_off_leaves_nothing_behind(home, monkeypatch):
    (home / "adult.data").write_bytes(bytes(1000))

    def promise_more(self: Quiet, name: str, value: str) -> None:
        SimpleHTTPRequestHandler.send_header(self, name, "2000" if name == "Content-Length" else value)

    monkeypatch.setattr(Quiet, "send_header", promise_more)
    refused(lambda: census("train"), "adult.data")
    assert not [path for path in data_folder().rglob("*") if path.is_file()]


def test_a_data_folder_that_cannot_be_is_said(home, tmp_path):
    (home / "adult.data").write_bytes(b"x")
    (tmp_path / "fetched").write_bytes(b"a file where a folder should be")
    refused(lambda: census("train"), "could not be downloaded", "Not a directory")


# The real ones


@pytest.fixture
def real(monkeypatch) -> None:
    if not small.REAL.is_dir():
        pytest.skip("the real data sets are not beside this repository")
    monkeypatch.setenv("MILODO_DATA", str(small.REAL))


def test_the_real_mnist_and_cifar_have_their_sizes_and_checksums(real):
    batches = {"train": {10_000 * k for k in range(1, 6)}, "test": {10_000}}
    digits = {"train": {60_000}, "test": {10_000}}
    for load, shape, sizes in ((mnist, (28, 28), digits), (cifar10, (3, 32, 32), batches)):
        for part, expected in sizes.items():
            images, labels = load(part)
            assert len(images) == len(labels) and len(images) in expected and images.shape[1:] == shape
            assert set(np.unique(labels)) == set(range(10))
    assert (np.bincount(cifar10("test")[1]) == 1000).all()  # as its author says


def test_the_real_census_has_the_rows_its_description_promises(real):
    names = (small.REAL / "adult" / "adult.names").read_text(encoding="utf-8", errors="replace")
    for part, promised in (("train", "train=30162"), ("test", "test=15060")):
        X, y = census(part)
        assert f"{len(y)}" in promised and promised in names
        assert np.isfinite(X).all() and X.shape == (len(y), 14)
    X, y = census("train")
    assert np.abs(X.mean(0)).max() < 1e-10 and np.abs(X.std(0) - 1).max() < 1e-10
    both = np.concatenate([y, census("test")[1]])
    assert f"{100 * both.mean():.2f}% (without unknowns)" in names  # "Probability for the label '>50K'"


def test_the_real_photographs_are_two_hundred_a_part_of_one_size(real):
    for part in ("train", "test"):
        paths = photographs(part)
        assert len(paths) == 200 and paths == sorted(paths)
    with Image.open(paths[0]) as image:
        assert sorted(image.size) == [321, 481]
