"""The threads of NumPy's and SciPy's linear algebra, which are not torch's."""

from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

# The name of the OpenBLAS that the wheels of NumPy and SciPy bring along, which torch never uses.
LIBRARY = "libscipy_openblas"


def one_blas_thread() -> AbstractContextManager[object]:
    """Within it NumPy and SciPy compute in one thread.

    SciPy's optimisers multiply matrices of a few dozen rows between the steps of torch. OpenBLAS
    starts a thread on every core for these, which then spin for a while in wait for more and take
    the cores from torch: a Cholesky factor takes four times as long.
    """
    return ThreadpoolController().select(prefix=LIBRARY).limit(limits=1)
