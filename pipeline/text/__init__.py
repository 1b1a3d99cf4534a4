"""From files of text to shards."""
