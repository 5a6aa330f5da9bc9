// The part of uPlot that the console uses; uplot.js declares it for all scripts of the page.
type UPlotValues = (number | null)[]
declare class uPlot {
  constructor(options: object, data: UPlotValues[], target: HTMLElement)
  setData(data: UPlotValues[]): void
  setSize(size: { width: number; height: number }): void
  destroy(): void
}
