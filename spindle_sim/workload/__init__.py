"""WHAT is trained: operators, modules, tasks and their data flows."""

from spindle_sim.workload.cost import Attention, Gemm, OperatorCost, Sharding, Variant
from spindle_sim.workload.graph import OperatorNode, operator_graph
from spindle_sim.workload.model import Block, DataFlow, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    ContrastiveLoss,
    Custom,
    Embedding,
    Operator,
    Projection,
    TransformerLayer,
)
from spindle_sim.workload.reader import load_workload, workload_schema
from spindle_sim.workload.zoo.catalogue import BUILTIN_WORKLOADS, builtin_workload

__all__ = [
    "BUILTIN_WORKLOADS",
    "Attention",
    "Block",
    "ContrastiveLoss",
    "Custom",
    "DataFlow",
    "Embedding",
    "Gemm",
    "Module",
    "ModuleUse",
    "Operator",
    "OperatorCost",
    "OperatorNode",
    "Projection",
    "Sharding",
    "Task",
    "TransformerLayer",
    "Variant",
    "Workload",
    "builtin_workload",
    "load_workload",
    "operator_graph",
    "workload_schema",
]
