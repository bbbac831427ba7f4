"""TorchRec's `KeyValueParams`, of tables with kernel key_value: which of them say where rows and caches are."""

from __future__ import annotations

from torchrec.distributed.types import KeyValueParams

#: Fields that put rows or copies of them where plans have no memory for them, and what they ask for. The others say how
#: RocksDB stores rows on the SSD of a rank, and what is reported of it.
_ELSEWHERE = {
    "l2_cache_size": "a second cache in the memory of the host",
    "max_l1_cache_size": "a limit for all caches of a rank",
    "ps_hosts": "a parameter server in the place of the SSD",
    "kvzch_tbe_config": "a virtual table",
}


def asked_elsewhere(params: KeyValueParams | None) -> list[str]:
    """Return what parameters ask for that plans do not hold, with the names of the fields; none of None."""
    return [f"{field}, {what}" for field, what in _ELSEWHERE.items() if getattr(params, field, None)]
