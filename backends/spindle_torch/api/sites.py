"""What flows in and out of each MetaOp of a split model, as the engine has it: rows of numbers."""

from collections.abc import Sequence

from spindle_torch.api.splitting import BLOCK_NAME, SplitModel
from spindle_torch.api.values import Value
from spindle_torch.shapes import Activation, Site

__all__ = ["split_sites"]


def split_sites(split: SplitModel) -> dict[str, Site]:
    """Give the sites of all MetaOps by their ids."""
    modules = {module.name: module for module in split.workload.modules}
    found: dict[str, Site] = {}
    for use in split.uses:
        task = split.workload.task(use.task)
        taken = next(item for item in task.uses if item.name == use.name)
        sources = tuple(f"{use.task}/{source}/{BLOCK_NAME}" for source in use.sources)
        passed = use.passed(0) if len(use.parts) > 1 else use.outputs
        metaop = f"{use.task}/{use.name}/{BLOCK_NAME}"
        found[metaop] = Site(
            metaop=metaop,
            task=use.task,
            use=use.name,
            parameter_set=f"{use.unit}/{BLOCK_NAME}",
            operator=modules[use.unit].blocks[0].operator,
            num_ops=len(use.parts),
            batch=task.batch_size,
            items=1,
            tokens=taken.tokens,
            context_tokens=0,
            inputs=tuple(
                _rows(split, use.task, split.use_of(source).outputs) for source in sources
            ),
            sources=sources,
            context_input=None,
            passed=_rows(split, use.task, passed),
            output=_rows(split, use.task, use.outputs) if use.outputs else None,
            data_tokens=0,
            is_sink=not use.outputs,
        )
    return found


def _rows(split: SplitModel, task: str, values: Sequence[Value]) -> Activation:
    capture = split.captures[task]
    width = sum(capture.shape(value).elements for value in values)
    return Activation(items=1, tokens=1, width=width)
