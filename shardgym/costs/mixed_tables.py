"""Tasks whose tables differ in more than sizes and ids, and what costs say of them."""

from shardgym.errors import InputError
from shardgym.tasks.task import ShardingTask


def check_pooled(task: ShardingTask, what: str) -> None:
    """Raise `InputError` for unpooled tables; `what` names what does not support them."""
    for table in task.tables:
        if not table.is_pooled:
            raise InputError(
                f"{what} supports pooled tables only, but table '{table.name}' has pooling='none': use cost 'roofline' "
                "or 'gpu'"
            )


def check_all_ids(task: ShardingTask, what: str) -> None:
    """Raise `InputError` for ids without repeats; arguments as `check_pooled`."""
    if task.dedup_ids:
        raise InputError(f"{what} does not support tasks with dedup_ids: use cost 'roofline' or 'gpu'")


def check_alike(
    task: ShardingTask, what: str, remedy: str = "use cost 'roofline' or 'gpu'", *, unpooled: bool = False
) -> None:
    """Raise `InputError` for tables that a measured or learned cost does not support.

    These are tables of another precision or optimiser than the task's, of several features, with weighted ids, or
    unpooled, unless the cost knows `unpooled` ones; and ids without repeats. The message names `what`
    and ends in the remedy.
    """
    if not unpooled:
        check_pooled(task, what)
    check_all_ids(task, what)
    for table in task.tables:
        found = ""
        if task.precision_of(table) != task.precision:
            found = f"precision {table.precision}, and the task {task.precision}"
        elif task.optimizer_of(table) != task.optimizer:
            found = f"optimizer {table.optimizer}, and the task {task.optimizer}"
        elif table.num_features > 1 and table.is_pooled:
            found = f"{table.num_features} features"
        elif table.weighted:
            found = "weighted ids"
        if found:
            raise InputError(
                f"{what} supports tables of one precision and optimizer, with one feature of unweighted ids each, but "
                f"table '{table.name}' has {found}: {remedy}"
            )


def operator_notes(task: ShardingTask) -> tuple[str, ...]:
    """Return a note if TorchRec runs several fused operators where a cost prices one."""
    if len(task.fused_groups) == 1:
        return ()
    return (
        f"tables differ in precision, optimizer, pooling or weights: TorchRec runs {len(task.fused_groups)} operators "
        "for them on a device, but the cost counts the launches of one",
    )
