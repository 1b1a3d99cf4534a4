"""Text files of all formats, cut into sentences and written as shards."""
