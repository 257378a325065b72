"""The command `milodo`."""
