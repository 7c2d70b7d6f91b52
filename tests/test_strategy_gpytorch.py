"""GPyTorch's own cases for variational strategies, with ours in place of theirs.

Plain, batched, and inside the multitask wrappers; q(f_β) is shared by the batch or has its shape.
Where GPyTorch's suite expects three Cholesky factorisations for two training steps of its strategy,
ours needs two: its prior is never factorised.
"""

import unittest

import gpytorch
import pytest
import torch
from gpytorch.mlls import GammaRobustVariationalELBO, PredictiveLogLikelihood, VariationalELBO
from gpytorch.test.variational_test_case import VariationalTestCase
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    LMCVariationalStrategy,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)

from orthogp.strategy import OrthogonalVariationalStrategy


class Cases(VariationalTestCase):
    batch_shape = torch.Size([])
    event_shape = torch.Size([32])
    distribution_cls = DeltaVariationalDistribution
    likelihood_cls = gpytorch.likelihoods.GaussianLikelihood
    mll_cls = VariationalELBO
    base_cls = VariationalStrategy
    base_shape = torch.Size([])
    factorisations = (2, 1)

    def strategy_cls(self, model, inducing_points, variational_distribution, **options):
        q = CholeskyVariationalDistribution(8, batch_shape=self.base_shape)
        base = self.base_cls(model, torch.randn(8, inducing_points.size(-1)), q, **options)
        return OrthogonalVariationalStrategy(
            base, inducing_points, variational_distribution, **options
        )

    def test_training_iteration(self, *args, expected_batch_shape=None, **kwargs):
        shape = self.shape_of_output(expected_batch_shape)
        cg, cholesky, ciq = super().test_training_iteration(
            *args, expected_batch_shape=shape, **kwargs
        )
        assert not cg.called
        assert not ciq.called
        assert cholesky.call_count == self.factorisations[0]

    def test_eval_iteration(self, *args, expected_batch_shape=None, **kwargs):
        shape = self.shape_of_output(expected_batch_shape)
        cg, cholesky, ciq = super().test_eval_iteration(*args, expected_batch_shape=shape, **kwargs)
        assert not cg.called
        assert not ciq.called
        assert cholesky.call_count == self.factorisations[1]

    def test_fantasy_call(self, *args, **kwargs):
        # GPyTorch expects an `ExactGP` of pseudo-points, ours conditions q(f) itself: its own tests
        # are in `test_strategy_fantasies`. Wrappers of GPyTorch's make no fantasy models.
        wrapped = len(self.event_shape) > 1
        with pytest.raises(NotImplementedError if wrapped else AssertionError):
            super().test_fantasy_call(*args, **kwargs)

    def shape_of_output(self, batch_shape):
        return self.batch_shape if batch_shape is None else batch_shape


class TestOrthogonal(Cases, unittest.TestCase):
    pass


class TestPredictive(Cases, unittest.TestCase):
    mll_cls = PredictiveLogLikelihood


class TestRobust(Cases, unittest.TestCase):
    mll_cls = GammaRobustVariationalELBO


class TestBatch(Cases, unittest.TestCase):
    batch_shape = torch.Size([3])


class TestBatchOfBases(Cases, unittest.TestCase):
    batch_shape = torch.Size([3])
    base_shape = torch.Size([3])


class TestUnwhitened(Cases, unittest.TestCase):
    base_cls = UnwhitenedVariationalStrategy
    # One more in training: this base draws its start from p(f_β).
    factorisations = (3, 1)


class Wrapped(Cases):
    """The last axis of the batch is that of the tasks, or of their latent functions."""

    def shape_of_output(self, batch_shape):
        return super().shape_of_output(batch_shape)[:-1]


class TestIndependentMultitask(Wrapped, unittest.TestCase):
    batch_shape = torch.Size([2])
    event_shape = torch.Size([32, 2])

    def likelihood_cls(self):
        return gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2)

    def strategy_cls(self, *args, **options):
        inner = super().strategy_cls(*args, **options)
        return IndependentMultitaskVariationalStrategy(inner, num_tasks=2)


class TestIndependentMultitaskPredictive(TestIndependentMultitask):
    mll_cls = PredictiveLogLikelihood
    base_shape = torch.Size([2])


class TestLMC(Wrapped, unittest.TestCase):
    batch_shape = torch.Size([3])
    event_shape = torch.Size([32, 4])

    def likelihood_cls(self):
        return gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=4)

    def strategy_cls(self, *args, **options):
        inner = super().strategy_cls(*args, **options)
        return LMCVariationalStrategy(inner, num_tasks=4, num_latents=3, latent_dim=-1)


class TestLMCPredictive(TestLMC):
    mll_cls = PredictiveLogLikelihood
    base_shape = torch.Size([3])
