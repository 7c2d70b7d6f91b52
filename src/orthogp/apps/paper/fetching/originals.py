"""The originals of the paper's data sets, as their repositories publish them: bytes to X and y."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.apps.paper.fetching.readers import (
    Stream,
    arff,
    coded,
    fields,
    labels,
    read_numbers,
    uncompress,
    varying,
    zip_member,
)
from orthogp.errors import DataError

Arrays = tuple[NDArray[np.float64], NDArray[Any]]


def target_last(values: NDArray[np.float64]) -> Arrays:
    return values[:, :-1], values[:, -1]


def target_first(values: NDArray[np.float64]) -> Arrays:
    return values[:, 1:], values[:, 0]


def road(content: bytes) -> Arrays:
    return target_last(read_numbers(zip_member(content, "3D_spatial_network.txt")))


def ct_slice(content: bytes) -> Arrays:
    return target_last(read_numbers(zip_member(content, "slice_localization_data.csv"), skip=1))


def song(content: bytes) -> Arrays:
    return target_first(read_numbers(zip_member(content, "YearPredictionMSD.txt")))


def protein(content: bytes) -> Arrays:
    X, rmsd = target_first(read_numbers(zip_member(content, "CASP.csv"), skip=1))
    return X, np.log1p(rmsd)


def elevators(content: bytes) -> Arrays:
    X, goal = target_last(arff(content))
    return X, np.log(goal)


def bike(content: bytes) -> Arrays:
    # instant, dteday, fourteen numbers, cnt
    rows = fields(zip_member(content, "hour.csv"))[1:]
    dates = np.array([row[1].split("-") for row in rows], dtype=np.float64)
    values = np.array([row[2:] for row in rows], dtype=np.float64)
    return np.hstack([dates, values[:, :-1]]), np.log(values[:, -1])


def houseelectric(content: bytes) -> Arrays:
    with zip_member(content, "household_power_consumption.txt") as stream:
        next(stream)
        text = b"".join(line for line in stream if b"?" not in line)
    # day/month/year;hour:minute:second;active power, then six other readings
    values = read_numbers(io.BytesIO(text.translate(bytes.maketrans(b"/:", b";;"))), ";")
    return np.delete(values, [5, 6], axis=1), values[:, 6]


def labelled_numbers(content: bytes, members: tuple[str, ...], delimiter: str | None) -> Arrays:
    """Numbers of members of a zip archive, one below the other, with the class last."""
    tables = [read_numbers(_member(content, name), delimiter) for name in members]
    X, y = target_last(np.vstack(tables))
    return X, labels(y)


def labelled_words(content: bytes, member: str, label: int) -> Arrays:
    """Numbers and words of a member of a zip archive, with the class in the column `label`."""
    rows = fields(_member(content, member))
    classes = [row.pop(label) for row in rows]
    return coded(rows), labels(classes)


def _member(content: bytes, name: str) -> Stream:
    member = zip_member(content, name)
    return uncompress(member.read()) if name.endswith(".Z") else member


def adult(content: bytes) -> Arrays:
    rows = [row for name in ("adult.data", "adult.test") for row in fields(_member(content, name))]
    # The test part ends its classes with a full stop.
    return coded([row[:-1] for row in rows]), labels([row[-1].rstrip(".") for row in rows])


def mushroom(content: bytes) -> Arrays:
    X, y = labelled_words(content, "agaricus-lepiota.data", label=0)
    return varying(X), y


def connect_4(content: bytes) -> Arrays:
    rows = fields(_member(content, "connect-4.data.Z"))
    return coded([row[:-1] for row in rows]), labels([row[-1] == "loss" for row in rows])


NURSERY = (
    "usual pretentious great_pret",
    "proper less_proper improper critical very_crit",
    "complete completed incomplete foster",
    "1 2 3 more",
    "convenient less_conv critical",
    "convenient inconv",
    "nonprob slightly_prob problematic",
    "recommended priority not_recom",
)


def nursery(content: bytes) -> Arrays:
    rows = fields(zip_member(content, "nursery.data"))
    orders = [{word: code for code, word in enumerate(words.split())} for words in NURSERY]
    return coded([row[:-1] for row in rows], orders), labels([row[-1] for row in rows])


def miniboone(content: bytes) -> Arrays:
    with zip_member(content, "MiniBooNE_PID.txt") as stream:
        signal, background = (int(count) for count in next(stream).split())
        X = read_numbers(stream, None)
    if len(X) != signal + background:
        raise DataError(f"the file has {len(X)} rows; its first line says {signal + background}")
    return X, (np.arange(len(X)) < signal).astype(np.int64)


def wine(content: bytes) -> Arrays:
    X, y = target_last(read_numbers(zip_member(content, "winequality-white.csv"), ";", skip=1))
    return X, labels(y)
