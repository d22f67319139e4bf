"""Reflexion: try, judge the try, write down what went wrong, and try again with that in mind.

Follows Shinn et al., "Reflexion" (arXiv 2303.11366): actor, evaluator and self-reflection are the same model, the
memory is the last `memory` reflections. The evaluator is the model's own verdict; pass `must_match` to use a regular
expression instead, which is the external signal that the paper has.
"""

EXTENSION = {
    "name": "reflexion",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "trials": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
            "memory": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 120},
            "must_match": {"type": "string"},
        },
        "additionalProperties": False,
    },
}


async def is_good(ctx, answer, must_match, words):
    if must_match is not None:
        return re.search(must_match, answer) is not None
    judge = await ctx.fork()
    await judge.append([{"role": "user", "content": "Is that answer correct and complete? Say yes or no."}])
    verdict = await judge.generate(max_tokens=4, temperature=0.0, constrain=words)
    await judge.release()
    return verdict.text == "yes"


async def main(request, lm):
    args = request.args
    words = await lm.constraint({"choice": ["yes", "no"]})
    prompt = await lm.context(request.messages)
    reflections: list[str] = []
    answer = ""
    for trial in range(args["trials"]):
        ctx = await prompt.fork()
        if reflections:
            notes = "\n".join(reflections[-args["memory"] :])
            await ctx.append([{"role": "user", "content": f"Notes on earlier attempts:\n{notes}\nTry again."}])
        attempt = await ctx.generate(max_tokens=args["max_tokens"], temperature=0.7, seed=trial)
        answer = attempt.text
        good = await is_good(ctx, answer, args.get("must_match"), words)
        await lm.emit_event("trial", {"number": trial, "answer": answer, "good": good})
        if good:
            break
        await ctx.append(
            [{"role": "user", "content": "In one sentence: what was wrong, and what should be done instead?"}]
        )
        reflection = await ctx.generate(max_tokens=60, temperature=0.0)
        reflections.append(reflection.text.strip())
        await ctx.release()
    return answer
