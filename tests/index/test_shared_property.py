"""Views give all threads the same objects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lightir.index.shared_property import shared_property
from lightir.index.view import View


class Computed:
    """An object with a property that two threads compute at once."""

    def __init__(self) -> None:
        self.barrier = Barrier(2)

    @shared_property
    def value(self) -> object:
        """A new object, computed only while another thread computes it too."""
        self.barrier.wait(timeout=10)
        return object()


def test_threads_that_compute_a_property_at_once_get_one_object() -> None:
    computed = Computed()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: computed.value, range(2))
    assert first is second is computed.value


def test_what_the_kernel_is_bound_to_is_shared() -> None:
    for name in ("dense_rows", "graphed_rows", "sparse_rows", "token_rows", "ids"):
        assert isinstance(vars(View)[name], shared_property), name
