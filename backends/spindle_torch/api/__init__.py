"""What users write: tasks of their own torch modules, split, planned and trained (section 4)."""

from spindle_torch.api.data import Batch, Loader
from spindle_torch.api.loading import Loaded, load_into
from spindle_torch.api.running import train
from spindle_torch.api.saving import save_workload
from spindle_torch.api.splitting import SplitModel, split_tasks
from spindle_torch.api.tasks import SpindleTask

__all__ = [
    "Batch",
    "Loaded",
    "Loader",
    "SpindleTask",
    "SplitModel",
    "load_into",
    "save_workload",
    "split_tasks",
    "train",
]
