{{/* What an application's pod embeds; values-sidecar.yaml shows how. The context is that of this chart. */}}

{{/* An item of initContainers: it is ready before the application starts, and ends after it. */}}
{{- define "watchproxy.sidecar.container" -}}
- {{ include "watchproxy.container" . | nindent 2 | trim }}
  restartPolicy: Always
{{- end -}}

{{/* Items of the environment of a container that is a client. */}}
{{- define "watchproxy.sidecar.env" -}}
- name: KUBECONFIG
  value: {{ .Values.sidecar.mountPath }}/kubeconfig
{{- end -}}

{{/* Items of its volumeMounts. */}}
{{- define "watchproxy.sidecar.mount" -}}
- name: watchproxy-client
  mountPath: {{ .Values.sidecar.mountPath }}
  readOnly: true
{{- end -}}

{{/* Items of the pod's volumes. */}}
{{- define "watchproxy.sidecar.volumes" -}}
{{ include "watchproxy.volumes" . }}
- name: watchproxy-client
  configMap:
    name: {{ include "watchproxy.fullname" . }}
    items:
    - {key: kubeconfig, path: kubeconfig}
{{- end -}}

{{/* The checksum for an annotation of the pod, so that it is rolled when the configuration changes. */}}
{{- define "watchproxy.sidecar.annotations" -}}
checksum/watchproxy: {{ include "watchproxy.checksum" . }}
{{- end -}}
