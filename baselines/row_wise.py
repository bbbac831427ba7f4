"""Tables cut evenly by rows over all devices where that pays, the others by columns."""

from neuroshard.plus.solver import NeuroShardPlus


class RowWise(NeuroShardPlus):
    """`neuroshard_plus` that may cut tables evenly by rows over all devices, and by columns, and nothing else.

    A piece of such a table looks up its share of the ids and sends partial sums of the whole width. So cutting by rows
    pays where a table has many ids per sample: ids are read once, whereas pieces of columns read all of them each. All
    devices get the same from it, so what the others leave balanced stays so. TorchRec's `row_wise` sharding is this.
    Boards show by it what rows alone bring.

    `kicks` and `row_cuts` are as in `NeuroShardPlus`.
    """

    def __init__(self, kicks: int | None = None, *, row_cuts: bool = True) -> None:
        super().__init__(kicks, sharding_types=["row_wise"], row_cuts=row_cuts)
