"""The export formats of a store, one record each.

To add one, write a function of a store and a path, and its record in `EXPORTS`; the help and
choices of `elmo dump` follow. A function is imported only when it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from elmo.errors import BadSettings


@dataclass(frozen=True)
class Export:
    """An export format: the function `writer` (module:name) with `options`; it returns a count of
    `units`.

    The format is chosen for file names with the `ending`. `dtypes` are the number formats it
    supports.
    """

    help: str
    writer: str
    options: Mapping[str, str] = field(default_factory=dict)
    units: str = "sentences"
    ending: str = ""
    dtypes: tuple[str, ...] = ("float32",)

    def write(self, store: Any, out: Any, *, dtype: str) -> int:
        """Write a store to `out`; return the count, or raise `BadSettings` for an unsupported
        dtype."""
        if dtype not in self.dtypes:
            raise BadSettings(
                f"--dtype {dtype}: this layout has {' and '.join(self.dtypes)}; leave --dtype out"
            )
        module, _, name = self.writer.partition(":")
        chosen = {"dtype": dtype} if len(self.dtypes) > 1 else {}
        written: int = getattr(import_module(module), name)(store, out, **self.options, **chosen)
        return written


_HDF5 = "elmo.store.export:export_hdf5"
EXPORTS: Mapping[str, Export] = {
    "lists": Export(
        help="Parquet: one row per token, a list of numbers per layer",
        writer="elmo.store.export:export_lists",
        units="rows, one per token",
        ending=".parquet",
        dtypes=("float32", "float16"),
    ),
    "all": Export("HDF5 of AllenNLP: every layer", _HDF5, {"layout": "all"}),
    "top": Export("HDF5 of AllenNLP: the last layer", _HDF5, {"layout": "top"}),
    "average": Export("HDF5 of AllenNLP: the mean of all layers", _HDF5, {"layout": "average"}),
    "bilm-tf": Export("HDF5 of bilm-tf: every layer", _HDF5, {"layout": "bilm-tf"}),
    "word2vec": Export(
        help="word2vec text, for gensim: per word the mean over its occurrences",
        writer="elmo.store.static:export_word2vec",
        units="words",
    ),
    "word2vec-0": Export(
        help="word2vec text: per word its layer 0, without context",
        writer="elmo.store.static:export_word2vec",
        options={"kind": "layer_0"},
        units="words",
    ),
    "datasets": Export("Hugging Face datasets: a folder", "elmo.store.export:export_datasets"),
}


def layout_for(name: str) -> str:
    """Return the name of the export format for a file name: by its ending, else `all`."""
    for layout, export in EXPORTS.items():
        if export.ending and name.endswith(export.ending):
            return layout
    return "all"
