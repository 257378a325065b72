"""A site that sends bytes at random: who notices says so, and all processes end."""

from __future__ import annotations

from pathlib import Path

from real import finish, start
from sklearn.datasets import load_breast_cancer
from test_sites import write_csv


def test_a_process_that_refuses_a_message_ends_and_so_do_all_others(tmp_path):
    data, bad = load_breast_cancer(), 2
    for rank in range(5):
        rows = slice(30 * rank, 30 * rank + 30)
        write_csv(tmp_path / f"{rank}.csv", map(str, data.feature_names), data.data[rows], "y", data.target[rows])
    command = ["node", "--data", str(tmp_path / "{rank}.csv"), "--loss", "logistic", "--l1", "0.01", "--graph", "ring(5)"]
    options = ["--links", "lossy", "--timeout", "10", "--out", str(tmp_path / "out{rank}")]
    ends = finish(start([str(Path(__file__).parent / "rubbish.py"), "30", str(bad), *command, *options], 5))
    codes = [end.code for end in ends]
    refusing = [rank for rank, code in enumerate(codes) if code == 2]
    assert len(refusing) == 1 and abs(refusing[0] - bad) == 1, codes  # a neighbour; the other one hears of it
    assert set(codes) == {2, 3}
    assert "Do both ends run one experiment?" in ends[refusing[0]].err
