"""The version of this package, read without importing anything else."""

__version__ = "0.2.0"
