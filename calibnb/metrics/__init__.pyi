# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from torch import Tensor
from .bins import ReliabilityBins as ReliabilityBins
from .sampling_weights import effective_size as effective_size
from .sampling_weights import linearized as linearized
from .sampling_weights import weighting_effect as weighting_effect
from .clusters import design_effect as design_effect
from .paired import PairedDifference as PairedDifference
from .paired import ece_difference as ece_difference
from .paired import mean_difference as mean_difference
from .paired import rate_difference as rate_difference
from .measure import Measure as Measure
def error_rate(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor: # 0-d float64 in [0, 1]
    ...
from .scores import mean_confidence as mean_confidence
from .scores import nll as nll
from .scores import entropy as entropy
def brier_score(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor: # 0-d float64 in [0, 2], not divided by K; binary in [0, 1]
    ...
from .scores import learned_epoch as learned_epoch
from .errors import top_label_sums as top_label_sums
def reliability_bins(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,        # M
    *, scheme:str='width',# 'width': equal-width bins; 'mass': bins with equal counts; or another name in `BIN_RULES`
    closed:str='right',   # for equal-width bins: 'right' for (lo, hi], 'left' for [lo, hi)
    ties:str='mean',      # equal confidences in equal-mass bins: 'mean', 'group' or 'split', as in `ada_ece`
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->ReliabilityBins:
    ...
def ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins=15,         # equal-width bins; a list gives one error for each number
    *, norm:str='l1',  # 'l1' (ECE), 'l2' (root mean square) or 'max' (MCE)
    closed:str='right',# 'right': bins (lo, hi]; 'left': bins [lo, hi)
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:             # 0-d float64 in [0, 1], or one for each of `n_bins`
    ...
def mce(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins=15,         # as in `ece`
    *, closed:str='right',
    min_count:int=1,   # leave out bins with fewer samples
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:             # 0-d float64 in [0, 1]; nan if no bin has min_count samples
    ...
def average_ce(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,
    *, task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:             # 0-d float64 in [0, 1]
    ...
from .errors import ece_from_logits as ece_from_logits
def debiased_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,
    *, scheme:str='width', # as in `reliability_bins`
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                 # 0-d float64 in [0, 1]
    ...
from .errors import noise_floor as noise_floor
def smooth_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, sigma:float|None=None, # width of the Gaussian, in units of confidence, >= 1e-4; None: equal to the error
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                    # 0-d float64 in [0, 1]
    ...
def sece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth:float=.01,    # width of the Gaussian, in units of confidence
    *, self_term:bool=True, # False: leave-one-out; nan for one sample
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                  # 0-d float64 in [0, 1]
    ...
def kde_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth=None,         # None: .02 for 'beta', rule of thumb for 'triweight'; 'loo' ('beta' only): the bandwidth
                            # with the largest leave-one-out likelihood
    *, kernel:str='beta',   # 'beta': [Popordanoska 2022], O(N²); 'triweight': [Zhang 2020], O(N)
    p:float=1.,             # power of the gap
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                  # 0-d float64 in [0, 1]; nan for one sample with 'beta'
    ...
def ada_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,          # bins of equal mass
    *, method:str='split',  # 'split': every sample counts; 'interp': as the reference code, for comparison
    ties:str='mean',        # equal confidences: 'mean': all count with their common share of hits, so the order of
                            # samples does not matter; 'group': in one bin; 'split': in sample order, as in the paper
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                  # 0-d float64 in [0, 1]
    ...
def classwise_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,           # equal-width bins for each class
    *, reduction:str='mean', # 'mean' over classes, or 'none' for the (K,) errors
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                   # 0-d float64 in [0, 1], or (K,)
    ...
def ace(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,          # ranges of equal mass for each class
    *, ties:str='mean',     # 'mean': equal probabilities get their common label frequency, so the order of
                            # samples does not matter; 'split': split ties in sample order, as in the paper
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                  # 0-d float64 in [0, 1]
    ...
def overconfidence_error(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins=15,                  # as in `ece`
    *, by_confidence:bool=False,# True: multiply each gap by the bin's confidence [Thulasidasan 2019, OE]
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                      # 0-d float64 in [0, 1], or one for each of `n_bins`
    ...
def underconfidence_error(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins=15,                  # as in `ece`
    *, task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                      # 0-d float64 in [0, 1], or one for each of `n_bins`
    ...
def one_sided_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,
    *, direction:str='over',    # 'over' for overconfidence_error, 'under' for underconfidence_error
    by_confidence:bool=False,   # as in `overconfidence_error`
    level:float=.95,
    seed:int=0,
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:         # lower and upper end
    ...
def top_k_ece(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    k:int=2,                    # number of most probable classes
    n_bins:int=15,
    *, ranks:str='within',      # 'within': the top k classes together; 'at': the k-th class only
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                      # 0-d float64 in [0, 1]
    ...
def top_k_ece_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    k:int=2,                    # k and the options are as in `top_k_ece`
    n_bins:int=15,
    *, ranks:str='within',      # or 'at'
    level:float=.95,
    seed:int=0,
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:         # lower and upper end
    ...
def ks_error(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, k:int|None=None,         # None: the top label or P(y = 1); a number: as in `top_k_ece`
    ranks:str='within',         # or 'at'
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                      # 0-d float64 in [0, 1]
    ...
def ks_error_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, k:int|None=None,         # as in `ks_error`
    ranks:str='within',         # or 'at'
    level:float=.95,            # of the interval, in (0, 1)
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:         # lower and upper end
    ...
from .variants import marginal_ce as marginal_ce
def marginal_ce_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,
    *, level:float=.95,
    draws:int=400,              # simulated calibrated models; if fewer than 2/(1 - level) - 1, the lower end is 0
    seed:int=0,
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:         # lower and upper end; nan if over a tenth of all N*K probabilities are alone in a bin
    ...
def canonical_ce(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth=None,             # of the Dirichlet kernels; None: .02; 'loo': by leave-one-out likelihood
    *, p:float=1.,              # power of the gaps
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                      # 0-d float64 in [0, 2]; nan for one sample
    ...
from .testing import consistency_test as consistency_test
def ks_test(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    *, k:int|None=None,  # as in `ks_error`
    ranks:str='within',  # or 'at'
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Measure:              # value, n, interval, p, floor and floor_high
    ...
def skce(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth=None,           # kernel width; None: the median distance between two predictions
    *, block:int|None=None,   # samples per block, 2: linear estimator; None: N if N <= 4,096, else min(N/50, 1,024)
    seed:int=0,               # seed of the shuffle before the split into blocks
    task:str|None=None,         # None: by shape; 'multilabel': each column is binary, with labels 0 and 1
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:                    # 0-d float64, may be negative by chance; nan for one sample
    ...
def skce_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth=None,           # as in `skce`
    *, block:int|None=None,
    level:float=.95,
    seed:int=0,
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:       # lower and upper end, not below 0
    ...
def skce_test(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    bandwidth=None,           # as in `skce`
    *, block:int|None=None,
    draws:int=500,            # resamples, for the estimate from all pairs
    seed:int=0,
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Measure:                   # value, n, interval and p
    ...
from .selective import RiskCoverage as RiskCoverage
from .selective import risk_coverage as risk_coverage
from .selective import aurc as aurc
from .selective import e_aurc as e_aurc
from .selective import augrc as augrc
from .selective import failure_auroc as failure_auroc
from .ood import energy_score as energy_score
from .ood import ood_auroc as ood_auroc
from .ood import fpr_at_tpr as fpr_at_tpr
from .ood import ood_measures as ood_measures
from .truth import TruthError as TruthError
from .truth import truth_error as truth_error
from .truth import resampled_truth_error as resampled_truth_error
from .decisions import DecisionCurve as DecisionCurve
from .decisions import decision_curve as decision_curve
from .decisions import net_benefit as net_benefit
from .decisions import cost_threshold as cost_threshold
from .decisions import expected_cost as expected_cost
from .decisions import cheapest_threshold as cheapest_threshold
from .recalibration import Recalibration as Recalibration
from .recalibration import calibration_slope as calibration_slope
from .recalibration import FlexibleCurve as FlexibleCurve
from .recalibration import flexible_curve as flexible_curve
from .recalibration import CalibrationIndices as CalibrationIndices
from .recalibration import calibration_indices as calibration_indices
def ici(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    knots:int=5, # knots of the spline: 3, 4 or 5
    *, sample_weight=None,         # (N,) numbers of at least 0
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->Tensor:       # 0-d float64 in [0, 1]
    ...
from .corp import CorpCurve as CorpCurve
from .corp import corp_curve as corp_curve
from .corp import Decomposition as Decomposition
from .corp import corp_decomposition as corp_decomposition
from .corp import corp_decompositions as corp_decompositions
from .certainty import bootstrap_ci as bootstrap_ci
from .certainty import ece_ci as ece_ci
def debiased_ece_ci(
    probs, target,              # (N, K) and (N,) class ids; (N,) for class 1 and (N,); multilabel (N, K) and (N, K)
    n_bins:int=15,
    *, scheme:str='width', # as in `reliability_bins`
    level:float=.95,       # confidence level, in (0, 1)
    ignore_index:int|None=None, # a label whose samples are left out
    validate:bool=True,         # False skips the checks of the values
)->tuple[float, float]:    # lower and upper end
    ...
from .registered import register_metric as register_metric
from .registered import registered_measures as registered_measures
