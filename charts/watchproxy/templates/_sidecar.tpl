{{/* What an application's pod embeds; values-sidecar.yaml shows how. The context is that of this chart. */}}

{{/* An item of initContainers: it is ready before the application starts, and ends after it. */}}
{{- define "watchproxy.sidecar.container" -}}
- {{ include "watchproxy.container" . | nindent 2 | trim }}
  restartPolicy: Always
{{- end -}}

{{/* "true" if a kubeconfig can lead to the sidecar: there is none for a Unix socket. */}}
{{- define "watchproxy.sidecar.kubeconfig" -}}
{{- if and (eq .Values.kind "Sidecar") (include "watchproxy.port" .Values.config.listen) -}}true{{- end -}}
{{- end -}}

{{/* Items of the environment of a container that is a client. */}}
{{- define "watchproxy.sidecar.env" -}}
{{- if include "watchproxy.sidecar.kubeconfig" . -}}
- name: KUBECONFIG
  value: {{ .Values.sidecar.mountPath }}/kubeconfig
{{- end -}}
{{- end -}}

{{/* Items of its volumeMounts. */}}
{{- define "watchproxy.sidecar.mount" -}}
{{- if include "watchproxy.sidecar.kubeconfig" . -}}
- name: watchproxy-client
  mountPath: {{ .Values.sidecar.mountPath }}
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Items of the pod's volumes. */}}
{{- define "watchproxy.sidecar.volumes" -}}
{{ include "watchproxy.volumes" . }}
{{- if include "watchproxy.sidecar.kubeconfig" . }}
- name: watchproxy-client
  configMap:
    name: {{ include "watchproxy.fullname" . }}
    items:
    - {key: kubeconfig, path: kubeconfig}
{{- end }}
{{- end -}}

{{/* The checksum for an annotation of the pod, so that it is rolled when the configuration changes. */}}
{{- define "watchproxy.sidecar.annotations" -}}
{{- if .Values.rollOnConfigChange -}}
checksum/watchproxy: {{ include "watchproxy.checksum" . }}
{{- end -}}
{{- end -}}
