"""LightRetriever on SmolLM2-135M: a lightir model folder beside this file, in `model/`."""
