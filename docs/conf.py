"""The documentation site: `make docs` builds it into build/docs, without network.

The pages under reference/generated are written here, from the command line and the dataclasses.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from generate import write_reference  # noqa: E402

project = "ELMo on your own text"
author = "The authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = project
html_static_path: list[str] = []
exclude_patterns = ["README.md"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
# Libraries that are integrated, where they are absent: their pages are written all the same.
autodoc_mock_imports = [name for name in ("spacy",) if find_spec(name) is None]
autodoc_default_options = {"members": True, "show-inheritance": False}
nitpicky = False
smartquotes = False  # commands are pasted into a shell
html_show_sphinx = False
html_show_copyright = False

write_reference(DOCS / "reference" / "generated")
