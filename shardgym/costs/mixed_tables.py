"""Tasks whose tables differ in more than sizes and ids, and what costs say of them."""

from shardgym.errors import InputError
from shardgym.tasks.task import ShardingTask


def check_pooled(task: ShardingTask, what: str) -> None:
    """Raise `InputError` for unpooled tables, of which a cost knows nothing; `what` refuses, for the message."""
    for table in task.tables:
        if not table.is_pooled:
            raise InputError(
                f"{what} knows pooled tables alone: table '{table.name}' has pooling='none', a row for each id; "
                "'roofline' and 'gpu' price it"
            )


def check_all_ids(task: ShardingTask, what: str) -> None:
    """Raise `InputError` for ids without repeats, of which a cost knows nothing; arguments as `check_pooled`."""
    if task.dedup_ids:
        raise InputError(f"{what} knows no ids without repeats, and the task has dedup_ids: 'roofline' and 'gpu' do")


def check_alike(
    task: ShardingTask, what: str, remedy: str = "'roofline' and 'gpu' price it", *, unpooled: bool = False
) -> None:
    """Raise `InputError` for tables of which a cost that was measured or learned from others knows nothing.

    These are tables of another precision or optimiser than the task's, of several features, with weighted ids, or
    unpooled, unless the cost knows `unpooled` ones; and ids without repeats. The message says what refuses, and the
    remedy.
    """
    if not unpooled:
        check_pooled(task, what)
    check_all_ids(task, what)
    for table in task.tables:
        found = ""
        if task.precision_of(table) != task.precision:
            found = f"weights in {table.precision} and the task is in {task.precision}"
        elif task.optimizer_of(table) != task.optimizer:
            found = f"optimizer {table.optimizer} and the task {task.optimizer}"
        elif table.num_features > 1 and table.is_pooled:
            found = f"{table.num_features} features"
        elif table.weighted:
            found = "weighted ids"
        if found:
            raise InputError(
                f"{what} knows tables of one precision and optimizer, with one feature of unweighted ids each: table "
                f"'{table.name}' has {found}; {remedy}"
            )


def operator_notes(task: ShardingTask) -> tuple[str, ...]:
    """Return a note if TorchRec runs several fused operators where a cost prices one."""
    if len(task.fused_groups) == 1:
        return ()
    return (
        f"tables differ in precision, optimizer, pooling or weights: TorchRec runs {len(task.fused_groups)} operators "
        "for them on a device, and the launches of one are priced",
    )
