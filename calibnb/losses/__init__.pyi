# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from torch import Tensor
from .surrogates import mmce as mmce
from .surrogates import mmce_weighted as mmce_weighted
from .surrogates import dece as dece
from .surrogates import sece as sece
from .surrogates import mdca as mdca
from .surrogates import dca as dca
from .weighted import weighted_cross_entropy as weighted_cross_entropy
def cross_entropy_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                      # 0-d, or the shape of `target`
    ...
def focal_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gamma=3.0,                   # focusing exponent >= 0: a number, or a tensor like `target` that may need a gradient
    *, detach_weight:bool=False, # True: gradient-weighted form, FL-GRA
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                       # 0-d, or the shape of `target`
    ...
def flsd_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    thresholds=(.2,),            # increasing thresholds on p_y
    gammas=(5., 3.),             # one gamma per interval, so one more than thresholds
    *, detach_weight:bool=False, # True: FLSD-GRA
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                       # 0-d, or the shape of `target`
    ...
def inverse_focal_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gamma=1.0,                   # >= 0: a number, or a tensor like `target`
    *, detach_weight:bool=False, # True: no gradient through the weight
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                       # 0-d, or the shape of `target`
    ...
def dual_focal_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gamma=5.0,                   # >= 0: a number, or a tensor like `target`
    second:str='below',          # p_j: 'below', the largest p_k < p_y; 'runner_up', the largest p_k of another class
    *, detach_weight=False,      # True: DFL-GRA; 'pj_only': only p_j is detached, as in the reference code
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                       # 0-d, or the shape of `target`
    ...
def bsce_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gamma=2.0,                   # >= 0: a number, or a tensor like `target`
    beta:float=2.0,              # order of the norm, in [1, inf]
    form:str='norm',             # 'norm' as in the authors' code, 'sum' as printed
    *, detach_weight:bool=False, # True: BSCE-GRA
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                       # 0-d, or the shape of `target`
    ...
def consistency_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gamma:float=3.0,        # exponent of the weight; 1 gives u = 1 - consistency
    scale:float=1.0,        # strength of the noise, in units of the logits or of the features
    draws:int=32,           # number of noisy copies
    noise:str='normal',     # 'normal' (standard deviation `scale`) or 'uniform' (in [-scale, scale])
    perturbed:str='logits', # 'logits', our own variant; or 'features' as in [Lin 2025], which needs `head`
    *, head=None,           # (K, d) weights of the last linear layer, for noise on its inputs
    generator=None,         # torch.Generator on the device of the logits
    weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def label_smoothing_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    eps:float=.05,          # probability taken from the label, in [0, 1)
    mode:str='uniform',     # 'uniform': over all classes [Wang 2021]; 'off_target': over other classes [Mukhoti 2020]
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def lp_norm_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    alpha:float=.01,        # weight of the penalty
    p:float=1.0,            # order of the norm, >= 1
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def entropy_regularized_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    alpha:float=.1,         # weight of the penalty
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`; may be negative
    ...
def brier_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`; values in [0, 2]
    ...
from .regularised import soft_target_loss as soft_target_loss
from .regularised import mixup_loss as mixup_loss
def mmce_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam=2.0,                 # weight of the penalty, as in [Mukhoti 2020]
    width=.4,                # width of the kernel
    sqrt=False,              # True: MMCE, as defined in the paper; False: its square
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                   # 0-d, or the shape of `target`
    ...
def mmce_weighted_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam=2.0,                 # weight of the penalty
    width=.4,                # width of the kernel
    compat=False,            # True: divide by the counts twice, as the reference code does
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                   # 0-d, or the shape of `target`
    ...
def dece_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam=.5,                  # weight of the penalty
    n_bins=15,
    t_a=100.,                # steepness of the soft accuracy
    t_b=.01,                 # softness of the bins
    row_norm='exact',        # 'exact': the bin weights of a sample sum to 1; or 'reference', the authors' code
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                   # 0-d, or the shape of `target`
    ...
def sece_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam=.5,                  # weight of the penalty
    bandwidth=.01,           # bandwidth of the kernel
    t_a=100.,                # steepness of the soft accuracy
    accuracy='soft',         # or 'hard'
    self_term=True,          # False: leave-one-out
    normalise=True,          # False: do not divide the kernel weights by their sum
    detach_kernel=False,     # True: no gradient through the kernel weights
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                   # 0-d, or the shape of `target`
    ...
def mbls_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    margin:float=10.,       # m: no penalty for differences up to m from the largest logit
    alpha:float=.1,         # weight of the penalty
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def acls_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    margin:float=10.,       # margin of the largest logit, and of the differences from it
    alpha:float=.1,         # weight of both penalties
    top:float=1.,           # weight of the penalty on the largest logit
    others:float=.1,        # weight of the penalty on the other logits
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def max_sup_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    alpha:float=.1,         # weight of the penalty, the `eps` of label smoothing
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def logit_norm_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    temperature:float=.04,  # divides the normalised logits; 0.04 is the paper's value for CIFAR-10
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def mdca_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam:float=1.,           # weight of the penalty
    gamma:float=0.,         # exponent of the focal loss; 0: cross-entropy
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def dca_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    lam:float=1.,           # weight of the penalty
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                  # 0-d, or the shape of `target`
    ...
def adafocal_loss(
    logits,                     # (N, K) or (N, K, d1, ...)
    target,                     # (N,) or (N, d1, ...) class ids
    gammas=(1.,),               # (M,) exponents, one for each range of the label probability; < 0: inverse focal
    edges=(),                   # (M-1,) increasing, between the ranges; an edge belongs to the range above it
    *, weight=None,                # (K,) weights of the classes, numbers >= 0
    ignore_index:int|None=None, # label of samples to ignore
    reduction:str='mean',       # 'mean', 'sum' or 'none'
)->Tensor:                      # 0-d, or the shape of `target`
    ...
from .modules import AdaFocalLoss as AdaFocalLoss
from .modules import LossModule as LossModule
from .modules import MbLSLoss as MbLSLoss
from .modules import ACLSLoss as ACLSLoss
from .modules import MaxSupLoss as MaxSupLoss
from .modules import LogitNormLoss as LogitNormLoss
from .modules import MDCALoss as MDCALoss
from .modules import DCALoss as DCALoss
from .modules import CrossEntropyLoss as CrossEntropyLoss
from .modules import LabelSmoothingLoss as LabelSmoothingLoss
from .modules import BrierLoss as BrierLoss
from .modules import FocalLoss as FocalLoss
from .modules import FLSDLoss as FLSDLoss
from .modules import InverseFocalLoss as InverseFocalLoss
from .modules import DualFocalLoss as DualFocalLoss
from .modules import BSCELoss as BSCELoss
from .modules import ConsistencyLoss as ConsistencyLoss
from .modules import LpNormLoss as LpNormLoss
from .modules import EntropyRegularizedLoss as EntropyRegularizedLoss
from .modules import SoftTargetLoss as SoftTargetLoss
from .modules import MMCELoss as MMCELoss
from .modules import MMCEWeightedLoss as MMCEWeightedLoss
from .modules import DECELoss as DECELoss
from .modules import SECELoss as SECELoss
from .modules import FocalGRALoss as FocalGRALoss
from .modules import FLSDGRALoss as FLSDGRALoss
from .modules import DualFocalGRALoss as DualFocalGRALoss
from .modules import BSCEGRALoss as BSCEGRALoss
from .modules import list_losses as list_losses
from .modules import loss_options as loss_options
from .modules import make_loss as make_loss
from .modules import register_loss as register_loss
from .theory import focal_gradient_factor as focal_gradient_factor
from .theory import gamma_from_p0 as gamma_from_p0
from .theory import binary_focal_argmin as binary_focal_argmin
from .labels import loss_label as loss_label
