"""milodo: decentralised optimization, handcrafted and learned, raced fairly on any graph."""

__version__ = "0.1.0"
