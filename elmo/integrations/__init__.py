"""The vectors in other libraries: one small file for each, which that library's extra installs."""
