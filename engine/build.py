"""From settings to a running loop: every `auto` is resolved here, once, and logged."""

from __future__ import annotations

import logging
import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from engine.attention.select import select_backend
from engine.config import EngineConfig, KVConfig
from engine.errors import ModelLoadError
from engine.kv.manager import KVManager
from engine.kv.storage import KVStorage
from engine.loop import EngineLoop
from engine.models.config import ModelConfig
from engine.models.load import LoadedModel, load_model
from engine.request import EngineInfo
from engine.runner.runner import ModelRunner
from engine.sampling.state import SamplerState
from engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)
