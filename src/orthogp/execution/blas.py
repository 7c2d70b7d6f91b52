"""The threads of NumPy's and SciPy's linear algebra, which are not torch's."""

from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

# The name of the OpenBLAS that the wheels of NumPy and SciPy bring along, which torch never uses.
LIBRARY = "libscipy_openblas"


def one_blas_thread() -> AbstractContextManager[object]:
    """Within it NumPy and SciPy compute in one thread.

    The threads of their OpenBLAS wait for their next work by spinning, even after a matrix of
    twenty rows, and meanwhile take the cores from torch: a Cholesky factor then takes four times as
    long. Only SciPy's search for hyperparameters and its small matrices are between torch's steps.
    """
    return ThreadpoolController().select(prefix=LIBRARY).limit(limits=1)
