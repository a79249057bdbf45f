"""A model that says what it is told to, and keeps what it was asked."""

from dataclasses import dataclass, field

from hltm_spark.models.llm import Completion, Request


@dataclass
class ScriptedClient:
    """Answers with the given texts, (text, finish reason) pairs or errors, in order."""

    answers: list[str | tuple[str, str] | Exception]
    model: str = "fake"
    asked: list[Request] = field(default_factory=list)

    def complete(self, request: Request) -> Completion:
        self.asked.append(request)
        answer = self.answers[len(self.asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        text, reason = answer if isinstance(answer, tuple) else (answer, "stop")
        return Completion(
            text=text, finish_reason=reason, prompt_tokens=1, completion_tokens=1, latency_s=0.1
        )

    def close(self) -> None:
        pass
