"""Text data: tokenizers, vocabularies, shards, and the stream that training reads."""
