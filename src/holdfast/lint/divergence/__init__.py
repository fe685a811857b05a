"""Find where ranks can diverge: branches, loops and handlers that enter different collectives."""
