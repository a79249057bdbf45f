"""Verbs that look: query and show read the shards without Spark; runs reads the run record."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from hltm_spark.cli.options import Call, common_options
from hltm_spark.core.errors import ScopeNotFound, ShardNotFound
from serving import MemoryReader
