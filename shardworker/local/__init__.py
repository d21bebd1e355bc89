"""The embedded default: a local Redis-compatible server, SQLite, the demo."""
