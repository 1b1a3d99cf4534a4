"""The tiny model of the library's tests."""

from tests.elmo.conftest import tiny_model, tiny_model_folder

__all__ = ["tiny_model", "tiny_model_folder"]
