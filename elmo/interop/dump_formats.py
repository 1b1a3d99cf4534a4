"""The layouts in which `elmo dump` exports a store; the functions are in `elmo/store/dump.py`."""

from collections.abc import Mapping

from elmo.errors import BadSettings

TABLE = "lists"  # the layout of Parquet; the others are HDF5
DUMP_LAYOUTS: Mapping[str, str] = {
    TABLE: "Parquet: one row per token, a list of numbers per layer",
    "all": "HDF5 of AllenNLP: every layer",
    "top": "HDF5 of AllenNLP: the last layer",
    "average": "HDF5 of AllenNLP: the mean of all layers",
    "bilm-tf": "HDF5 of bilm-tf: every layer",
}
_BY_ENDING = {"parquet": TABLE, "hdf5": "all", "h5": "all"}


def choose_layout(name: str, layout: str | None = None) -> str:
    """Return the layout for an output file's name: `layout`, or the one that has its ending; raise
    `BadSettings` if there is none, or the ending is for another kind of file."""
    by_ending = _BY_ENDING.get(name.rpartition(".")[2])
    chosen_layout = layout or by_ending
    if chosen_layout is None:
        raise BadSettings(f"{name}: the extension must be .parquet, .hdf5 or .h5, or pass --layout")
    if by_ending is not None and (by_ending == TABLE) != (chosen_layout == TABLE):
        raise BadSettings(f"{name}: --layout {layout} writes another kind of file; rename it")
    return chosen_layout
