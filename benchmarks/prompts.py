"""What a leaf's prompts take in tokens beside its documents, counted exactly."""

from dataclasses import dataclass
from itertools import cycle

from bpe_openai import get_encoding

from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.records import Document, NodeInput
from hltm_spark.models.requests import WAVES, NodePrompts

DOCUMENT_TOKENS = 320
ENCODING = "o200k_base"
_SENTENCE = (
    "The recruiter said that the candidate from Oulu wants hybrid work and a salary near sixty "
    "thousand euros because the last offer was lower."
)
_SUMMARY = "The recruiter wants hybrid work in Oulu near sixty thousand euros [brief]. " * 5


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Tokens of one document, and of all prompts that a leaf with it alone is asked."""

    document: int
    prompts: int


def measure_prompts(conf: str, *, layout: str) -> PromptTokens:
    """Count the prompts of a leaf with one document of about `DOCUMENT_TOKENS` tokens.

    Args:
        conf: Path of the conf whose facets and hints the prompts show.
        layout: `fused` or `separate`.
    """
    encoding = get_encoding(ENCODING)

    def count(*texts: str) -> int:
        return sum(len(encoding.encode(text)) for text in texts)

    words = cycle(_SENTENCE.split())
    text = next(words)
    while count(text) < DOCUMENT_TOKENS:
        text += f" {next(words)}"
    overrides = ["llm.provider=openai", "llm.model=scripted", f"views.layout={layout}"]
    prompts = NodePrompts.load(load_settings(conf, overrides=overrides))
    document = Document(doc_id="brief", text=text, kind="note")
    leaf = NodeInput(
        tenant_id="acme", node_id="acme/seat/p1", level="project", documents=(document,)
    )
    first, *later = WAVES[layout]
    requests = [prompts.request(leaf, task) for task in first]
    requests += [prompts.request(leaf, task, summary=_SUMMARY) for wave in later for task in wave]
    return PromptTokens(
        document=count(text), prompts=sum(count(r.system, r.user) for r in requests)
    )
