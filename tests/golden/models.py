"""The golden files as model folders."""

import json
import shutil
from pathlib import Path

from elmo.interop.files_of_2018 import import_2018

GOLDEN = Path(__file__).resolve().parent


def copy_golden(name: str, folder: Path) -> tuple[Path, Path, Path | None]:
    """Write the files of 2018 of a golden model: options, weights and, if it has one, the words."""
    described = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    (folder / "options.json").write_text(json.dumps(described["options"]))
    weights = Path(shutil.copyfile(GOLDEN / f"{name}.hdf5", folder / "weights.hdf5"))
    if not described["words"]:
        return folder / "options.json", weights, None
    (folder / "old-words").write_text("".join(f"{word}\n" for word in described["words"]))
    return folder / "options.json", weights, folder / "old-words"


def import_golden(name: str, folder: Path) -> Path:
    """Import the golden model `name` into `folder`; return the model folder."""
    options, weights, words = copy_golden(name, folder)
    import_2018(options, weights, folder / "model", vocabulary=words)
    return folder / "model"
