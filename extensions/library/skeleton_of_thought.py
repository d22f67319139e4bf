"""Skeleton of thought: write the points of the answer first, then fill in all of them at the same time.

Follows Ning et al., "Skeleton-of-Thought" (arXiv 2307.15337). The skeleton is held to a list by a constraint, where the
paper parses free text; points are expanded in parallel from one shared prefix.
"""

EXTENSION = {
    "name": "skeleton_of_thought",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "points": {"type": "integer", "minimum": 1, "maximum": 12, "default": 3},
            "point_tokens": {"type": "integer", "minimum": 1, "default": 60},
        },
        "additionalProperties": False,
    },
}


async def expand(root, number, point, tokens):
    branch = await root.fork()
    await branch.append([{"role": "user", "content": f"Write one or two sentences on point {number}: {point}"}])
    text = await branch.generate(max_tokens=tokens, temperature=0.0)
    await branch.release()
    return text.text.strip()


async def main(request, lm):
    args = request.args
    schema = {
        "type": "array",
        "items": {"type": "string", "minLength": 3, "maxLength": 48},
        "minItems": args["points"],
        "maxItems": args["points"],
    }
    root = await lm.context(request.messages)
    await root.append([{"role": "user", "content": "First list the points of the answer, three to five words each."}])
    skeleton = await root.generate(
        max_tokens=40 * args["points"] + 16, temperature=0.0, constrain={"json_schema": schema}
    )
    points = json.loads(skeleton.text)
    await lm.emit_event("skeleton", points)
    texts = await asyncio.gather(
        *[expand(root, at + 1, point, args["point_tokens"]) for at, point in enumerate(points)]
    )
    return "\n\n".join([f"{at + 1}. {point}\n{text}" for at, (point, text) in enumerate(zip(points, texts))])
