// The part of htm/preact/standalone that the console uses.
export type View = object | string | number | boolean | null | undefined | View[]
export function html(strings: TemplateStringsArray, ...values: unknown[]): View
export function render(view: View, parent: Element): void
export function useState<T>(first: T | (() => T)): [T, (next: T | ((before: T) => T)) => void]
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T
export function useRef<T>(first: T): { current: T }
export function useErrorBoundary(seen?: (error: unknown) => void): [unknown, () => void]
