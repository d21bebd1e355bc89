"""Apply a function to every row of a huge SQL table, by many workers that may crash."""

__version__ = "0.1.0"
