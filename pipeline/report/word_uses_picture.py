"""The picture of a word's occurrences in a store, as points on a plane coloured by use.

Shapes: N occurrences, D the width of a vector, G groups of like uses.
"""

import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.data.arrays import Floats

if TYPE_CHECKING:
    from elmo.store import FeatureStore

POINTS = 400  # points of a picture
READ = 4000  # occurrences that are read, of which the picture shows as many, evenly
FEWEST = 4  # occurrences that make a picture
GROUPS = 3
WIDTH, HEIGHT, EDGE = 640, 420, 16


class Occurrence(NamedTuple):
    """An occurrence of a token in a store: the mean vector of its layers, and its sentence.

    `position` is the token's among the `tokens` of the sentence, from 0.
    """

    vector_D: Floats
    position: int
    tokens: list[str]

    def to_html(self) -> str:
        """Return the tokens around the occurrence as HTML, with the token itself in bold."""
        return marked_html(self.tokens, self.position)


def marked_html(tokens: Sequence[str], position: int) -> str:
    """Return the tokens around one of a sentence as HTML, with that one in bold."""
    from elmo.store.neighbors import surroundings

    before, token, after = map(escape, surroundings(tokens, position))
    return f"{before}<b>{token}</b>{after}"


def occurrences(store: "FeatureStore", word: str) -> list[Occurrence]:
    """Return the first occurrences (4,000 at most) of the token `word`, in the store's order."""
    first: list[Occurrence] = []
    for number in store.numbers():
        part = store.part(number)
        type_id = pc.index(part.types.tokens, word).as_py()
        if type_id < 0:
            continue
        for block in part.blocks(store.layers):
            indices = np.flatnonzero(block.type_ids == type_id)
            rows = np.searchsorted(block.offsets, indices, side="right") - 1
            for index, row in zip(indices.tolist(), rows.tolist(), strict=True):
                start, stop = int(block.offsets[row]), int(block.offsets[row + 1])
                tokens = part.types.tokens.take(pa.array(block.type_ids[start:stop])).to_pylist()
                vector_D = block.vectors[:, index].mean(0)
                first.append(Occurrence(vector_D, index - start, tokens))
            if len(first) >= READ:
                return first[:READ]
    return first


def picture_html(occurrences: Sequence[Occurrence]) -> str:
    """Return a plot (SVG) of a word's occurrences, and a typical one of each group, as HTML."""
    last = len(occurrences) - 1
    kept = [occurrences[k] for k in np.linspace(0, last, min(POINTS, last + 1)).astype(int)]
    vectors_ND = np.stack([one.vector_D for one in kept])
    groups_N, typical_G = group_vectors(vectors_ND)
    points_N2 = project_to_plane(vectors_ND)
    low, high = points_N2.min(0), points_N2.max(0)
    scale = np.array([WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE]) / np.maximum(high - low, 1e-9)
    circles = [
        f'<circle class="g{group}" cx="{x:.1f}" cy="{HEIGHT - y:.1f}" r="5">'
        f"<title>{one.to_html().replace('<b>', '[').replace('</b>', ']')}</title></circle>"
        for (x, y), group, one in zip(
            (points_N2 - low) * scale + EDGE, groups_N.tolist(), kept, strict=True
        )
    ]
    legend = [
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="g{group}" cx="6" cy="6" '
        f'r="5"/></svg> {np.count_nonzero(groups_N == group)} like: {kept[k].to_html()}</li>'
        for group, k in enumerate(typical_G)
    ]
    frame = f'class="plane" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="occurrences"'
    lines = [f"<svg {frame}>", *circles, "</svg>", '<ul class="uses">', *legend, "</ul>", ""]
    return "\n".join(lines)


def group_vectors(vectors_ND: Floats) -> tuple[npt.NDArray[np.intp], list[int]]:
    """Divide N vectors of D numbers into groups by k-means.

    Returns the group of each vector, the largest being 0, and for each group the index of the
    vector nearest its centre. Equal inputs give equal groups: the first centre is the vector
    farthest from the mean, each next one the farthest from those before.
    """
    from scipy.cluster.vq import kmeans2
    from scipy.spatial.distance import cdist

    centres = [int(np.linalg.norm(vectors_ND - vectors_ND.mean(0), axis=1).argmax())]
    while len(centres) < GROUPS:
        farthest = cdist(vectors_ND, vectors_ND[centres]).min(1)
        if farthest.max() < 1e-6:
            break
        centres.append(int(farthest.argmax()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a group that has lost its vectors stays
        centre_GD, _ = kmeans2(vectors_ND, vectors_ND[centres], iter=50, minit="matrix")
    distances_NG = cdist(vectors_ND, centre_GD)
    nearest_N = distances_NG.argmin(1)
    sizes = np.bincount(nearest_N, minlength=len(centre_GD))
    order = [int(g) for g in np.argsort(-sizes, kind="stable") if sizes[g]]
    renamed = {group: new for new, group in enumerate(order)}
    typical = [int(distances_NG[:, group].argmin()) for group in order]
    return np.array([renamed[int(group)] for group in nearest_N]), typical


def project_to_plane(vectors_ND: Floats) -> npt.NDArray[Any]:
    """Project N vectors of D numbers on their two principal directions; return an array (N, 2).

    The signs of the directions are fixed, so equal inputs give equal points.
    """
    centred_ND = vectors_ND - vectors_ND.mean(0)
    _, _, directions = np.linalg.svd(centred_ND.astype(np.float64), full_matrices=False)
    chosen = directions[:2]
    signs = np.sign(chosen[np.arange(len(chosen)), np.abs(chosen).argmax(1)])
    points = centred_ND @ (chosen * signs[:, None]).T
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
