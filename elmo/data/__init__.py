"""Text to tokens, vocabularies, shards, and the stream that training reads."""
