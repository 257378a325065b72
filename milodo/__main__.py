"""python -m milodo"""

from milodo.cli.main import entry

entry()
