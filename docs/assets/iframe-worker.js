// Lets the search of the site work from a folder: browsers start no worker from a file. On file:// the script of a
// worker runs in a hidden frame instead. Material's search asks for a class of this name.
window.IFrameWorker = class extends EventTarget {
  constructor(script) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    // Scripts of a frame load in turn; importScripts of a worker does the same and returns when they are there.
    frame.srcdoc = `<script>
      self.importScripts = async (...scripts) => {
        for (const script of scripts) await new Promise((resolve, reject) => {
          const element = document.createElement("script")
          Object.assign(element, {src: script, onload: resolve, onerror: reject})
          document.head.append(element)
        })
      }
    </script><script src="${script}"></script>`
    this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow)))
    document.body.append(frame)
    this.ready.then(inner => {
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
    })
  }

  async postMessage(data) {
    const inner = await this.ready
    inner.dispatchEvent(new MessageEvent("message", {data}))
  }
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker
