"""What the processes of `team.together` run: functions of strings that return tensors."""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import group_fits
import shard_fits
from orthogp.likelihoods import Bernoulli, Gaussian
from orthogp.training import fit
from priors import with_prior
from runs import Blocks, contents, data, model, settings


def train(
    basis: str, optimizer: str, kind: str, rows: str, steps: str, shard: str = "", folder: str = ""
):
    """A run of `steps` steps, and every tensor it ends with."""
    table = data(int(rows), dtype=torch.float64)
    likelihood = Gaussian(1)
    if kind == "bernoulli":
        likelihood = Bernoulli(1)
        table = type(table)(table.x, (table.y > 0).double())
    m = model(table, basis, optimizer, likelihood)
    # With all columns of the KL, γ in parts and in one piece have the same bound.
    columns = {"kl_columns": None, "shard_residual": True} if shard else {}
    config = settings(max_steps=int(steps), **columns)
    result = fit(m, table, config, checkpoint_dir=folder or None, checkpoint_seconds=0.0)
    return contents(m) | {"bounds": torch.tensor([r.bound for r in result.history])}


def train_all(*runs: str):
    """Several runs of `train`, one after the other; each is its arguments with commas."""
    return [train(*run.split(",")) for run in runs]


def fail_in_one(shard: str):
    """A run in which K_β has no factor for a while, in the last process alone."""
    factorise, calls = torch.linalg.cholesky_ex, iter(range(10**6))

    def failing(A, *args, **kwargs):
        L, info = factorise(A, *args, **kwargs)
        return L, info.fill_(1) if 20 <= next(calls) < 40 else info

    if dist.get_rank() == dist.get_world_size() - 1:
        torch.linalg.cholesky_ex = failing
    rows = data(200, dtype=torch.float64)
    m = model(rows)
    columns = {"kl_columns": None, "shard_residual": True} if shard else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(m, rows, settings(**columns))
    return contents(m) | {"recoveries": torch.tensor(result.recoveries)}


def train_stream(blocks: str):
    """A run on rows in so many blocks."""
    rows = data(200, dtype=torch.float64)
    m = model(rows)
    fit(m, Blocks(rows, (200 // int(blocks),) * int(blocks)), settings())
    return contents(m)


def train_with_prior():
    """Runs on a kernel with a prior so narrow that only it counts, γ whole and in parts."""
    rows, ends = data(200, dtype=torch.float64), []
    for columns in ({}, {"kl_columns": None, "shard_residual": True}):
        m = with_prior(rows)
        fit(m, rows, settings(**columns))
        ends.append(contents(m))
    return ends


def fit_estimators(folder: str):
    """What `group_fits` ends with; its models are saved in `folder`."""
    return group_fits.all_fits(Path(folder))


def fit_shards(folder: str):
    """What `shard_fits` ends with in this process, and what it refuses."""
    rank = dist.get_rank()
    return shard_fits.all_fits(rank, Path(folder)), shard_fits.refusals(rank)


def fit_resumable_shards(folder: str):
    return shard_fits.resumable(folder)
