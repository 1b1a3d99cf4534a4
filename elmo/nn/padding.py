"""The sizes to which a batch is padded on a GPU: few different shapes, since each needs a CUDA
graph."""

TIME_STEPS_APART = 8


def round_up_time_steps(time_steps: int) -> int:
    """Round a number of time steps up to a multiple of 8, so that few different shapes occur."""
    return -(-time_steps // TIME_STEPS_APART) * TIME_STEPS_APART


def round_up_rows(rows: int) -> int:
    """Round a number of rows up to a power of two, or above 256 to a multiple of 256, so that few
    different shapes occur."""
    return 1 << (rows - 1).bit_length() if rows <= 256 else -(-rows // 256) * 256
