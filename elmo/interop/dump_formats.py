"""The list of the formats to which `elmo dump` exports a store, one record each.

To add one, write its function in `elmo/store/dump.py` and its record in `DUMP_FORMATS`; the
help and choices of the command follow. A function is imported only when it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from elmo.errors import BadSettings


@dataclass(frozen=True)
class DumpFormat:
    """A file format to which `elmo dump` exports a store.

    `writer` is the function that writes it, as "module:name"; it is called with the store, the path
    and `options`, and returns how many `units` it wrote (`sentences`, say). File names with one of
    the `endings` are for formats of its `kind` alone; the first such format is their default.
    `dtypes` are the number formats it supports; `help` describes it. `kind` is a regular expression
    of how its files begin: no other is replaced.
    """

    help: str
    writer: str
    options: Mapping[str, str] = field(default_factory=dict)
    units: str = "sentences"
    endings: tuple[str, ...] = ()
    kind: bytes = rb"\x89HDF"
    dtypes: tuple[str, ...] = ("float32",)

    def write(self, store: Any, out: Any, *, dtype: str) -> int:
        """Write a store to the path `out`; return the number of `units`, or raise `BadSettings` if
        the number format `dtype` is none of `dtypes`."""
        if dtype not in self.dtypes:
            raise BadSettings(
                f"--dtype {dtype}: this layout has {' and '.join(self.dtypes)}; leave --dtype out"
            )
        module, _, name = self.writer.partition(":")
        extra = {"dtype": dtype} if len(self.dtypes) > 1 else {}
        count: int = getattr(import_module(module), name)(store, out, **self.options, **extra)
        return count


_HDF5 = "elmo.store.dump:export_hdf5"
DUMP_FORMATS: Mapping[str, DumpFormat] = {
    "lists": DumpFormat(
        help="Parquet: one row per token, a list of numbers per layer",
        writer="elmo.store.dump:export_token_table",
        units="rows, one per token",
        endings=(".parquet",),
        kind=b"PAR1",
        dtypes=("float32", "float16"),
    ),
    "all": DumpFormat(
        "HDF5 of AllenNLP: every layer", _HDF5, {"layout": "all"}, endings=(".hdf5", ".h5")
    ),
    "top": DumpFormat("HDF5 of AllenNLP: the last layer", _HDF5, {"layout": "top"}),
    "average": DumpFormat("HDF5 of AllenNLP: the mean of all layers", _HDF5, {"layout": "average"}),
    "bilm-tf": DumpFormat("HDF5 of bilm-tf: every layer", _HDF5, {"layout": "bilm-tf"}),
    "datasets": DumpFormat("Hugging Face datasets: a folder", "elmo.store.dump:export_dataset"),
}


def format_for(name: str, layout: str | None = None) -> DumpFormat:
    """Return the export format for an output file's name: that of the `layout`, or the one that has
    its ending; raise `BadSettings` if there is none, or the ending is for another kind of file."""
    by_ending = next((item for item in DUMP_FORMATS.values() if name.endswith(item.endings)), None)
    dump_format = DUMP_FORMATS[layout] if layout else by_ending
    if dump_format is None:
        raise BadSettings(f"{name}: dump writes .parquet, .hdf5 and .h5, or what --layout names")
    if by_ending is not None and by_ending.kind != dump_format.kind:
        raise BadSettings(f"{name}: --layout {layout} writes another kind of file; rename it")
    return dump_format
