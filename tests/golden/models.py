"""The golden files as model folders."""

import json
from pathlib import Path

from elmo.interop.files_of_2018 import import_2018

GOLDEN = Path(__file__).resolve().parent


def import_golden(name: str, folder: Path) -> Path:
    """Import the golden model `name` into `folder`; return the model folder."""
    described = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    (folder / "options.json").write_text(json.dumps(described["options"]))
    words = None
    if described["words"]:
        words = folder / "words"
        words.write_text("".join(f"{word}\n" for word in described["words"]))
    weights = GOLDEN / f"{name}.hdf5"
    import_2018(folder / "options.json", weights, folder / "model", vocabulary=words)
    return folder / "model"
