"""Ray: sessions, work on many processes, lost workers, submission."""
