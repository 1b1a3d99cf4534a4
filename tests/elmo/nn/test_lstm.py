"""The LSTM stacks against the equations written out one row and one step at a time."""

import copy
import functools
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elmo.nn import cell, packed, products
from elmo.nn.lstm import LayerWeights, LSTMStack, LSTMState

T, B, P, C = 7, 3, 4, 6


@pytest.fixture(params=["eager", "compiled"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ELMO_COMPILE", "0" if request.param == "eager" else "1")
    monkeypatch.setattr(cell, "MIN_COMPILE_WORK", 0)
    cell.choose_cell_functions.cache_clear()
    if cell.choose_cell_functions(torch.device("cpu"), C).kind != request.param:
        pytest.skip("no C++ compiler for torch.compile")
    yield request.param
    cell.choose_cell_functions.cache_clear()


def stack(*, cells: int = C, clip: float | None = 0.3, skip: bool = True) -> LSTMStack:
    made = LSTMStack(
        layers=2,
        inputs=P,
        cells=cells,
        projection=P,
        cell_clip=clip,
        projection_clip=None if clip is None else clip / 2,
        skip=skip,
    )
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0, 0.7, generator=generator)
    return made


def by_hand(
    made: LSTMStack, x_STBI: Tensor, state: LSTMState, reset_STB: Tensor | None
) -> tuple[list[Tensor], LSTMState]:
    """The reference semantics, plain autograd: gates i, j, f, o; forget bias 1; clip; residual."""
    outputs, hs, cs = [], [], []
    for layer in range(made.layer_count):
        y_TSBP, (h, c) = [], (state.h_LSBP[layer], state.c_LSBC[layer])
        for t in range(x_STBI.shape[1]):
            if reset_STB is not None:
                h = torch.where(reset_STB[:, t, :, None], torch.zeros(()), h)
                c = torch.where(reset_STB[:, t, :, None], torch.zeros(()), c)
            z = torch.cat([x_STBI[:, t], h], -1) @ made.weight[layer] + made.bias[layer][:, None]
            i, j, f, o = z.chunk(4, -1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
            if made.cell_clip is not None:
                c = c.clamp(-made.cell_clip, made.cell_clip)
            h = torch.sigmoid(o) * torch.tanh(c)
            if made.project:
                h = h @ made.project[layer]
                if made.projection_clip is not None:
                    h = h.clamp(-made.projection_clip, made.projection_clip)
            y_TSBP.append(h)
        y_STBP = torch.stack(y_TSBP, 1)
        if made.skip and layer > 0:
            y_STBP = y_STBP + x_STBI
        outputs.append(y_STBP)
        hs.append(h)
        cs.append(c)
        x_STBI = y_STBP
    return outputs, LSTMState(torch.stack(hs), torch.stack(cs))


def some(seed: int = 0) -> tuple[Tensor, LSTMState, Tensor]:
    torch.manual_seed(seed)
    state = LSTMState(torch.randn(2, 2, B, P) * 0.1, torch.randn(2, 2, B, C) * 0.1)
    return torch.randn(2, T, B, P), state, torch.rand(2, T, B) < 0.3


@pytest.mark.parametrize("clip", [0.3, None])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.slow
def test_outputs_and_gradients_agree_with_the_equations(
    kind: str, clip: float | None, skip: bool
) -> None:
    made = stack(clip=clip, skip=skip)
    x_STBI, state, reset_STB = some()
    gradients = []
    for read in (
        lambda x: made(x, state, reset_STB=reset_STB),
        lambda x: by_hand(made, x, state, reset_STB),
    ):
        made.zero_grad()
        leaf = x_STBI.clone().requires_grad_()
        outputs, after = read(leaf)
        loss = sum((y * (k + 1)).pow(2).sum() for k, y in enumerate(outputs))
        loss.backward()
        grads = [leaf.grad, *(p.grad for p in made.parameters())]
        gradients.append([*outputs, *after, *grads])
    for ours, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, atol=2e-5, rtol=2e-5)


def test_without_projection_the_cells_are_the_output(kind: str) -> None:
    made = stack(cells=P)
    assert not made.project
    x_STBI, _, _ = some()
    state = made.zero_state(B)
    with torch.no_grad():
        ours, _ = made(x_STBI, state)
        reference, _ = by_hand(made, x_STBI, state, None)
    torch.testing.assert_close(ours[-1], reference[-1], atol=1e-6, rtol=1e-5)


def test_rows_that_end_early_keep_their_state() -> None:
    made = stack()
    x_STBI, state, _ = some()
    lengths = [7, 4, 2]
    sizes = [sum(length > t for length in lengths) for t in range(T)]
    with torch.no_grad():
        ours, after = made(x_STBI, state, row_counts=sizes)
        for row, length in enumerate(lengths):
            alone, end = made(
                x_STBI[:, :length, row : row + 1], state.select_rows(slice(row, row + 1))
            )
            torch.testing.assert_close(ours[-1][:, :length, row], alone[-1][:, :, 0])
            torch.testing.assert_close(after.select_rows(slice(row, row + 1)), end)


def test_training_and_inference_give_the_same(kind: str) -> None:
    made = stack()
    x_STBI, state, reset_STB = some()
    trained, _ = made(x_STBI, state, reset_STB=reset_STB)
    with torch.no_grad():
        inferred, _ = made(x_STBI, state, reset_STB=reset_STB)
    torch.testing.assert_close(trained[-1], inferred[-1])


def test_the_residual_adds_the_dropped_input() -> None:
    made, plain = stack(), stack(skip=False)
    x_STBI, state, _ = some()
    with torch.no_grad():
        ours, _ = made(x_STBI, state, drop=lambda x, layer: x * 0.5)
        bare, _ = plain(x_STBI, state, drop=lambda x, layer: x * 0.5)
    torch.testing.assert_close(ours[1], bare[1] + bare[0] * 0.5)


def test_bfloat16_products_keep_a_float32_cell_state(kind: str) -> None:
    made = stack(clip=3.0)
    x_STBI, state, _ = some()
    with torch.no_grad():
        exact, _ = made(x_STBI, state)
        rough, after = made(x_STBI.bfloat16(), state)
    assert after.c_LSBC.dtype == torch.float32
    assert rough[-1].dtype == torch.bfloat16
    error = (rough[-1].float() - exact[-1]).norm() / exact[-1].norm()
    assert 1e-5 < error < 0.03


@pytest.mark.parametrize(
    ("lacking", "reason"), [("triton", "no Triton was found"), ("gcc", "no C compiler was found")]
)
def test_without_a_compiler_a_gpu_gets_the_eager_cell(
    lacking: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ELMO_COMPILE", "1")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(cell, "find_spec", lambda name: None if name == lacking else object())
    monkeypatch.setattr(cell.shutil, "which", lambda name: None if lacking == "gcc" else name)
    cell.choose_cell_functions.cache_clear()
    with caplog.at_level("INFO"):
        assert cell.choose_cell_functions(torch.device("cuda", 0), C) is cell.EAGER_CELL
    assert reason in caplog.text
    monkeypatch.setattr(cell, "_obstacle_to_compiling", lambda device: "")
    cell.choose_cell_functions.cache_clear()
    assert (
        cell.choose_cell_functions(torch.device("cuda", 0), C).kind == "compiled"
    )  # not yet compiled
    cell.choose_cell_functions.cache_clear()


@pytest.mark.parametrize(
    ("found", "reason"), [("g++", ""), ("clang++", ""), ("cc", "no C++ compiler was found")]
)
def test_either_compiler_will_do_on_a_processor(
    found: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMO_COMPILE", "1")
    monkeypatch.setattr(cell.shutil, "which", lambda name: name if name == found else None)
    assert cell._obstacle_to_compiling(torch.device("cpu")) == reason


def test_each_width_of_a_process_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles the same code a few times only, and then runs it eagerly: an error here."""
    strict = functools.partial(torch.compile, fullgraph=True, backend="eager")
    monkeypatch.setenv("ELMO_COMPILE", "1")
    monkeypatch.setattr(cell, "_obstacle_to_compiling", lambda device: "")
    monkeypatch.setattr(torch, "compile", strict)
    cell.choose_cell_functions.cache_clear()
    try:
        for cells in range(5, 11):
            made = stack(cells=cells)
            made.compiled = True
            for rows in (B, 5):
                x_STBI, state = torch.randn(2, T, rows, P), made.zero_state(rows)
                made(x_STBI, state)[0][-1].sum().backward()
                with torch.no_grad():
                    made(x_STBI, state)
    finally:
        cell.choose_cell_functions.cache_clear()


@torch.inference_mode()
@pytest.mark.parametrize("cells", [C, P])
def test_weights_laid_out_give_the_same(
    kind: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MIN_PACKED_NUMBERS", 1)
    made = stack(cells=cells).requires_grad_(False)
    x_STBP, _, reset_STB = some()
    weights = packed.pack_if_faster(made.inference_weights(torch.float32))
    assert all(isinstance(layer, packed.PackedWeights) for layer in weights)
    expected, after = made(x_STBP, made.zero_state(B), reset_STB=reset_STB)
    found, after_too = made(x_STBP, made.zero_state(B), reset_STB=reset_STB, weights=weights)
    for a, b in zip([*expected, *after], [*found, *after_too], strict=True):
        torch.testing.assert_close(a, b)
    sizes = [B, B, 2, 2, 2, 1, 1]
    expected, after = made(x_STBP, made.zero_state(B), row_counts=sizes)
    found, after_too = made(x_STBP, made.zero_state(B), row_counts=sizes, weights=weights)
    torch.testing.assert_close(found[-1][:, :, :1], expected[-1][:, :, :1])
    torch.testing.assert_close(after_too.c_LSBC, after.c_LSBC)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(weights)))
    again, _ = made(x_STBP, made.zero_state(B), row_counts=sizes, weights=copied)
    assert torch.equal(again[-1][:, :, :1], found[-1][:, :, :1])


in_bfloat16 = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not packed.onednn_has_bfloat16(),
    reason="oneDNN has no bfloat16 on this processor",
)
ROUNDING = {"rtol": 2**-6, "atol": 2**-7}  # of bfloat16, once or twice


@in_bfloat16
@torch.inference_mode()
@pytest.mark.parametrize("cells", [C, P])
def test_weights_laid_out_in_bfloat16_give_the_same(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MIN_PACKED_NUMBERS", 1)
    made = stack(cells=cells).requires_grad_(False)
    x_STBP, _, reset_STB = some()
    plain = made.inference_weights(torch.bfloat16)
    weights = packed.pack_if_faster(plain)
    assert all(isinstance(layer, packed.PackedWeights) for layer in weights)
    read = {"state": made.zero_state(B), "reset_STB": reset_STB}
    expected, after = made(x_STBP.bfloat16(), **read, weights=plain)
    found, after_too = made(x_STBP.bfloat16(), **read, weights=weights)
    for a, b in zip([*expected, *after], [*found, *after_too], strict=True):
        torch.testing.assert_close(a, b, **ROUNDING)


@in_bfloat16
@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_sum_and_a_product_of_a_large_weight_are_rounded_once(rows: int) -> None:
    torch.manual_seed(1)
    weight_SPG = torch.randn(1, 512, packed.MIN_PACKED_NUMBERS // 512).bfloat16() / 16
    x_nP, sum_nG = torch.randn(rows, 512).bfloat16(), torch.randn(rows, weight_SPG.shape[2])
    sum_nG = (sum_nG * 100).bfloat16()
    (laid_out,) = packed._pack(weight_SPG)
    found_nG = packed._add_product(sum_nG, x_nP, laid_out)
    exact_nG = sum_nG.double() + x_nP.double() @ weight_SPG[0].double()
    wrong_nG = (found_nG.double() - exact_nG).abs()
    assert bool((wrong_nG <= exact_nG.abs() * 2**-8 + 1e-4).all())  # float32 adds up to 1e-5


@pytest.mark.parametrize(
    ("vendor", "capability", "lacks"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_weights_of_any_size_are_laid_out_where_mkl_lacks_avx512(
    vendor: str | None,
    capability: str,
    lacks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    products.mkl_lacks_avx512.cache_clear()
    weights = packed.pack_if_faster(stack().requires_grad_(False).inference_weights(torch.float32))
    products.mkl_lacks_avx512.cache_clear()
    assert {isinstance(layer, packed.PackedWeights) for layer in weights} == {lacks}


@pytest.mark.parametrize(("dtype", "plain"), [(torch.float32, True), (torch.bfloat16, False)])
def test_one_row_is_multiplied_as_is_fastest(dtype: torch.dtype, plain: bool) -> None:
    weights = [LayerWeights(*(torch.zeros(2, 3, dtype=dtype) for _ in range(3)), None)]
    laid_out = packed.PackedWeights(weights[0], [], [], None)
    assert packed.choose_for_one_row([laid_out])[0] is (weights[0] if plain else laid_out)
    assert packed.choose_for_one_row(weights) == weights


@pytest.mark.parametrize("units", [True, False])
def test_large_weights_are_laid_out(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "mkl_lacks_avx512", lambda: False)
    monkeypatch.setattr(packed, "onednn_has_bfloat16", lambda: units)

    def one(projection: int, cells: int, dtype: torch.dtype = torch.float32) -> LayerWeights:
        recurrent = torch.zeros(2, projection, 4 * cells, dtype=dtype)
        project = torch.zeros(2, cells, projection, dtype=dtype)
        return LayerWeights(recurrent, recurrent, torch.zeros(2, 4 * cells), project)

    original, small = one(512, 4096), one(128, 1024)
    first, second = packed.pack_if_faster([original, small])
    assert isinstance(first, packed.PackedWeights) and second is small
    in_bfloat16 = one(512, 4096, torch.bfloat16)
    monkeypatch.setattr(packed.PackedWeights, "pack", lambda weights: None)
    assert packed.pack_if_faster([in_bfloat16]) == [None if units else in_bfloat16]
