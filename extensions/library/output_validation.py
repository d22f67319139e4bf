"""Output validation: check an answer in the program, tell the model what is wrong with it, and let it answer again.

The loop of Madaan et al., "Self-Refine" (arXiv 2303.17651), with feedback from a check in place of the model's own:
the answer must match a regular expression as a whole, or be a JSON object with some keys. A constraint makes sure of
a form that a grammar can say; this is for what only code can tell, and shows where to put it.
"""

EXTENSION = {
    "name": "output_validation",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "keys": {"type": "array", "items": {"type": "string"}},
            "attempts": {"type": "integer", "minimum": 1, "maximum": 16, "default": 3},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.7},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


def problem(text, pattern, keys):
    """What is wrong with an answer; None if nothing is."""
    if pattern is not None and re.fullmatch(pattern, text.strip()) is None:
        return f"it must match the regular expression {pattern}"
    if keys is not None:
        try:
            found = json.loads(text)
        except ValueError as error:
            return f"it is no JSON: {error}"
        if not isinstance(found, dict):
            return "it must be a JSON object"
        missing = [key for key in keys if key not in found]
        if missing:
            return "these keys are missing: " + ", ".join(missing)
    return None


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages or request.prompt)
    problems = []
    answer = None
    for attempt in range(args["attempts"]):
        answer = await ctx.generate(
            max_tokens=args["max_tokens"], temperature=args["temperature"], seed=args["seed"] + attempt
        )
        wrong = problem(answer.text, args.get("pattern"), args.get("keys"))
        if wrong is None:
            await lm.emit(answer.text)
            return {"valid": True, "problems": problems}
        problems.append(wrong)
        await lm.emit_event("refused", {"text": answer.text, "problem": wrong})
        await ctx.append([{"role": "user", "content": f"That answer is refused: {wrong}. Answer again, correctly."}])
    if answer is not None:
        await lm.emit(answer.text)
    return {"valid": False, "problems": problems}
